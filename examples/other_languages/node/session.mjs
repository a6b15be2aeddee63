// A session with a server of actors: the proof of both sides, and sealed messages.

import { createHash, createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import http from "node:http";
import net from "node:net";
import tls from "node:tls";

const HANDSHAKE = 10_000; // milliseconds

/** The connection, or the server, is gone; who calls may look for it again. */
export class Broken extends Error {}

/** Who answers does not hold the cluster's key. */
export class NotAuthentic extends Error {}

/** The key of a cluster's calls, in base64: it derives from a secret of the root and from the cluster's identity. */
export function keyOfCalls(secret, { cluster_id, addresses }) {
  return hmac(Buffer.from(secret, "base64"), `fray-cluster ${cluster_id} ${addresses[0]}`).digest("base64");
}

const hmac = (key, ...parts) => parts.reduce((mac, part) => mac.update(part), createHmac("sha256", key));

/** Parts, each behind its length. */
export function joined(...parts) {
  return Buffer.concat(parts.flatMap((part) => [lengthOf(Buffer.from(part)), Buffer.from(part)]));
}

function lengthOf(bytes) {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return length;
}

/** The key of a direction: "up" to the server, "down" to the client. */
export const directionKey = (secret, direction, clientNonce, serverNonce, identity, fingerprint) =>
  hmac(secret, joined("fray-rpc", direction, clientNonce, serverNonce, identity, fingerprint)).digest();

/** The seal of what stands at a position of a direction. */
export function seal(key, position, content) {
  const place = Buffer.alloc(8);
  place.writeBigUInt64BE(BigInt(position));
  return hmac(key, place, content).digest("hex");
}

/** Whether a seal is the expected one, in a time that does not tell how much of it is. */
const isSame = (given = "", expected) =>
  given.length === expected.length && timingSafeEqual(Buffer.from(given), Buffer.from(expected));

/** One connection, on which calls in JSON are made one after the other. */
export class Session {
  #position = 0;

  constructor(socket, host) {
    this.socket = socket;
    this.host = host;
    this.agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    this.agent.createConnection = () => socket;
  }

  /** A session at an endpoint, once both sides have shown that they hold the key; null if the server has not got it. */
  static async open(endpoint, { id, secret }, encrypt = false) {
    const { socket, fingerprint } = await connected(endpoint, encrypt);
    const session = new Session(socket, endpoint.address);
    socket.setTimeout(HANDSHAKE, () => socket.destroy(new Error("no answer")));
    try {
      const isKnown = await session.#prove(endpoint, id, Buffer.from(secret, "base64"), fingerprint);
      socket.setTimeout(0);
      if (isKnown) return session;
    } catch (error) {
      session.close();
      throw error;
    }
    session.close();
    return null;
  }

  async #prove(endpoint, id, secret, fingerprint) {
    const nonce = randomBytes(16).toString("hex");
    const { status, headers } = await this.#post("/session", { "fray-key": id, "fray-nonce": nonce });
    if (status === 401) return false;
    this.identity = headers["fray-identity"];
    const there = [nonce, headers["fray-nonce"] ?? "", this.identity ?? "", fingerprint];
    this.up = directionKey(secret, "up", ...there);
    this.down = directionKey(secret, "down", ...there);
    const expected = seal(this.down, 0, "proof");
    if (!isSame(headers["fray-proof"], expected)) throw new NotAuthentic("the server's proof is wrong");
    if (this.identity !== endpoint.nonce) throw new Broken("another server is at this address");
    const answer = await this.#post("/proof", { "fray-proof": seal(this.up, 0, "json") });
    if (answer.status !== 200) throw new NotAuthentic("our proof is refused");
    return true;
  }

  /** What a call came to: {result} or {error}. */
  async call(path, body) {
    const position = (this.#position += 1);
    const answer = await this.#post(path, { "fray-seal": seal(this.up, position, joined(path, body)) }, body);
    const expected = seal(this.down, position, joined(path, answer.body));
    if (!isSame(answer.headers["fray-seal"], expected)) throw new NotAuthentic("the seal of the reply is wrong");
    return JSON.parse(answer.body.toString());
  }

  close() {
    this.socket.destroy();
  }

  /** Posts a request; any fault of the connection is `Broken`. */
  #post(path, headers, body = "") {
    return new Promise((resolve, reject) => {
      const fail = (error) => reject(new Broken(`${this.host}: ${error.message}`));
      const length = { "content-length": Buffer.byteLength(body) };
      const request = http.request({ agent: this.agent, method: "POST", path, headers: { ...headers, ...length } });
      request.once("error", fail);
      request.once("response", async (response) => {
        try {
          const parts = await response.toArray();
          resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(parts) });
        } catch (error) {
          fail(error);
        }
      });
      request.end(body);
    });
  }
}

/** A socket to an endpoint, and the fingerprint of the certificate that it is encrypted under; "" if it is not. */
async function connected({ address, fingerprint = "" }, encrypt) {
  const host = address.slice(0, address.lastIndexOf(":")).replace(/^\[|\]$/g, "");
  const place = { host, port: Number(address.slice(address.lastIndexOf(":") + 1)) };
  const encrypted = encrypt || fingerprint !== "";
  // The certificate is checked by its fingerprint, because nobody signs those of actors.
  const secured = { ...place, minVersion: "TLSv1.3", rejectUnauthorized: false };
  const socket = encrypted ? tls.connect(secured) : net.connect({ ...place, noDelay: true });
  await new Promise((resolve, reject) => {
    socket.once(encrypted ? "secureConnect" : "connect", resolve);
    socket.once("error", (error) => reject(new Broken(`${address}: ${error.message}`)));
    socket.setTimeout(HANDSHAKE, () => socket.destroy(new Error("no connection")));
  });
  socket.on("error", () => {}); // the waiting request fails
  if (!encrypted) return { socket, fingerprint: "" };
  const shown = createHash("sha256").update(socket.getPeerCertificate().raw).digest("hex");
  if (fingerprint && shown !== fingerprint) throw new NotAuthentic("the certificate is not the endpoint's");
  return { socket, fingerprint: shown };
}
