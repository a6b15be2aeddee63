// Digests that Node's crypto lacks: BLAKE2b of any length, keyed or not (RFC 7693), and CRC-32.

// Each word of 64 bits is two of 32, the lower first.
const IV = new Uint32Array([
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
]);

const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

const LANES = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];

/** BLAKE2b of `data` with `length` bytes, under a key of at most 64 bytes. */
export function blake2b(data, length, key = Buffer.alloc(0)) {
  const state = IV.slice();
  state[0] ^= 0x01010000 ^ (key.length << 8) ^ length;
  const first = key.length ? Buffer.concat([key], 128) : Buffer.alloc(0);
  const input = Buffer.concat([first, data]);
  const blocks = Math.max(1, Math.ceil(input.length / 128));
  for (let block = 0; block < blocks; block++) {
    const part = Buffer.concat([input.subarray(128 * block, 128 * block + 128)], 128);
    const words = Uint32Array.from({ length: 32 }, (_, index) => part.readUInt32LE(4 * index));
    compress(state, words, Math.min(128 * (block + 1), input.length), block === blocks - 1);
  }
  const out = Buffer.alloc(64);
  state.forEach((word, index) => out.writeUInt32LE(word, 4 * index));
  return out.subarray(0, length);
}

function compress(state, message, count, last) {
  const v = new Uint32Array(32);
  v.set(state);
  v.set(IV, 16);
  v[24] ^= count;
  v[25] ^= count / 2 ** 32;
  if (last) {
    v[28] ^= 0xffffffff;
    v[29] ^= 0xffffffff;
  }
  for (let round = 0; round < 12; round++) {
    const order = SIGMA[round % 10];
    LANES.forEach((lane, index) => mix(v, lane, message, order[2 * index], order[2 * index + 1]));
  }
  for (let index = 0; index < 16; index++) state[index] ^= v[index] ^ v[index + 16];
}

function mix(v, [a, b, c, d], message, x, y) {
  add(v, a, v[2 * b], v[2 * b + 1]);
  add(v, a, message[2 * x], message[2 * x + 1]);
  rotate(v, d, a, 32);
  add(v, c, v[2 * d], v[2 * d + 1]);
  rotate(v, b, c, 24);
  add(v, a, v[2 * b], v[2 * b + 1]);
  add(v, a, message[2 * y], message[2 * y + 1]);
  rotate(v, d, a, 16);
  add(v, c, v[2 * d], v[2 * d + 1]);
  rotate(v, b, c, 63);
}

/** v[a] += (low, high), modulo 2^64. */
function add(v, a, low, high) {
  const sum = v[2 * a] + low;
  v[2 * a] = sum;
  v[2 * a + 1] += high + (sum > 0xffffffff ? 1 : 0);
}

/** v[a] = (v[a] ^ v[b]) rotated right by `bits`. */
function rotate(v, a, b, bits) {
  const low = v[2 * a] ^ v[2 * b];
  const high = v[2 * a + 1] ^ v[2 * b + 1];
  const [from, to] = bits >= 32 ? [high, low] : [low, high];
  const rest = bits % 32;
  v[2 * a] = rest ? (from >>> rest) | (to << (32 - rest)) : from;
  v[2 * a + 1] = rest ? (to >>> rest) | (from << (32 - rest)) : to;
}

/** CRC-32 as zlib counts it. */
export function crc32(data) {
  let rest = 0xffffffff;
  for (const byte of data) {
    rest ^= byte;
    for (let bit = 0; bit < 8; bit++) rest = (rest >>> 1) ^ (rest & 1 ? 0xedb88320 : 0);
  }
  return (rest ^ 0xffffffff) >>> 0;
}
