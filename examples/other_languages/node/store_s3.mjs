// A store in an S3 bucket: requests signed with AWS Signature Version 4, writes on If-Match and If-None-Match.

import { createHash, createHmac } from "node:crypto";

import { ABSENT, insist, Unknown } from "./store.mjs";

const TIMEOUT = 10_000;

export class S3Store {
  #offset = 0; // of the storage's clock to ours, in seconds

  /** The environment is that of the AWS tools: keys, region, and an endpoint if it is not Amazon's. */
  constructor(root, environment) {
    const [bucket, ...prefix] = root.slice("s3://".length).split("/").filter(Boolean);
    this.region = environment.AWS_REGION ?? environment.AWS_DEFAULT_REGION ?? "us-east-1";
    this.keys = {
      id: environment.AWS_ACCESS_KEY_ID,
      secret: environment.AWS_SECRET_ACCESS_KEY,
      token: environment.AWS_SESSION_TOKEN,
    };
    const endpoint = environment.AWS_ENDPOINT_URL_S3 ?? environment.AWS_ENDPOINT_URL;
    this.bucket = `${endpoint ?? `https://s3.${this.region}.amazonaws.com`}/${bucket}`;
    this.name = bucket;
    this.prefix = prefix.map((segment) => `${segment}/`).join("");
  }

  /** The root's canonical form: buckets of Amazon have unique names, others only with their endpoint. */
  address() {
    const root = `s3://${[this.name, this.prefix].join("/").replace(/\/+$/, "")}`;
    const { hostname, port } = new URL(this.bucket);
    if (/(^|\.)amazonaws\.com(\.cn)?$/.test(hostname)) return root;
    const host = ["127.0.0.1", "[::1]"].includes(hostname) ? "localhost" : hostname.replace(/^\[|\]$/g, "");
    return `${root}?endpoint=${host}${port && `:${port}`}`;
  }

  now() {
    return Date.now() / 1000 + this.#offset;
  }

  async read(key, unless) {
    const answer = await this.#ask("GET", this.#url(key), unless ? { "If-None-Match": unless } : {}, "", [304, 404]);
    if (answer.status === 404) return null;
    if (answer.status === 304) return { version: unless };
    const data = await body(answer);
    const updated = Date.parse(answer.headers.get("last-modified")) / 1000;
    return { data, version: answer.headers.get("etag"), updated };
  }

  async write(key, data, condition) {
    const headers = condition === ABSENT ? { "If-None-Match": "*" } : match(condition.version);
    const answer = await this.#ask("PUT", this.#url(key), headers, data, [404, 412]);
    return answer.ok ? answer.headers.get("etag") : null;
  }

  async remove(key, version) {
    const answer = await this.#ask("DELETE", this.#url(key), match(version), "", [404, 412]);
    return answer.ok;
  }

  async *list(prefix, after = "") {
    const query = { "list-type": "2", prefix: this.prefix + prefix };
    if (after) query["start-after"] = this.prefix + after;
    do {
      const answer = await insist(async () => body(await this.#ask("GET", this.#url("", query), {}, "")));
      const page = answer.toString();
      for (const key of texts(page, "Key")) yield key.slice(this.prefix.length);
      query["continuation-token"] = texts(page, "NextContinuationToken")[0];
    } while (query["continuation-token"]);
  }

  #url(key, query = {}) {
    const segments = key && (this.prefix + key).split("/").map(encode).join("/");
    const words = Object.keys(query).sort().map((name) => `${name}=${encode(query[name])}`);
    return new URL(this.bucket + (key && `/${segments}`) + (words.length ? `?${words.join("&")}` : ""));
  }

  /** Sends a request. What is neither 2xx nor expected says nothing about a write, or is an error for people. */
  async #ask(method, url, conditions, data, expected = []) {
    const headers = { ...conditions, ...this.#signature(method, url, conditions, data) };
    let answer;
    try {
      const options = { method, headers, redirect: "manual", signal: AbortSignal.timeout(TIMEOUT) };
      answer = await fetch(url, data === "" ? options : { ...options, body: data });
    } catch (error) {
      throw new Unknown(`${method} ${url}: ${error.cause?.message ?? error.message}`);
    }
    const date = Date.parse(answer.headers.get("date"));
    if (date) this.#offset = (date + 500 - Date.now()) / 1000;
    if (answer.ok || expected.includes(answer.status)) return answer;
    const text = `${method} ${url}: ${answer.status} ${(await body(answer)).toString().slice(0, 500)}`;
    throw saysNothing(answer.status, text) ? new Unknown(text) : new Error(text);
  }

  /** The headers that prove who asks. */
  #signature(method, url, conditions, data) {
    const time = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
    const hash = sha256(data);
    const signed = { ...conditions, host: url.host, "x-amz-content-sha256": hash, "x-amz-date": time };
    if (this.keys.token) signed["x-amz-security-token"] = this.keys.token;
    const lines = Object.entries(signed).map(([name, value]) => [name.toLowerCase(), value]).sort();
    const names = lines.map(([name]) => name).join(";");
    const heads = lines.map(([name, value]) => `${name}:${value}\n`).join("");
    const request = [method, url.pathname, url.search.slice(1), heads, names, hash].join("\n");

    const scope = `${time.slice(0, 8)}/${this.region}/s3/aws4_request`;
    const key = scope.split("/").reduce(hmac, `AWS4${this.keys.secret}`);
    const signature = hmac(key, `AWS4-HMAC-SHA256\n${time}\n${scope}\n${sha256(request)}`).toString("hex");
    const { host, ...sent } = signed;
    const proof = `Credential=${this.keys.id}/${scope}, SignedHeaders=${names}, Signature=${signature}`;
    return { ...sent, authorization: `AWS4-HMAC-SHA256 ${proof}` };
  }
}

/** Whether an answer leaves it open what became of a write, or lets it be sent again. */
const saysNothing = (status, text) =>
  status >= 500 || [307, 408, 409, 429].includes(status) ||
  (status === 400 && /<Code>(RequestTimeout|IncompleteBody|BadDigest)</.test(text));

const match = (version) => (version ? { "If-Match": version } : {});
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const hmac = (key, text) => createHmac("sha256", key).update(text).digest();
const percent = (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`;
const encode = (text) => encodeURIComponent(text).replace(/[!'()*]/g, percent);

async function body(answer) {
  try {
    return Buffer.from(await answer.arrayBuffer());
  } catch (error) {
    throw new Unknown(`the answer broke off: ${error.message}`);
  }
}

/** The texts of all elements of that name in an XML document. */
function texts(xml, element) {
  return [...xml.matchAll(new RegExp(`<${element}>([^<]*)</${element}>`, "g"))].map((found) => unescape(found[1]));
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

function unescape(text) {
  return text.replace(/&(?:#x([0-9a-f]+)|#(\d+)|(\w+));/gi, (whole, hex, decimal, name) =>
    name ? (ENTITIES[name] ?? whole) : String.fromCodePoint(hex ? parseInt(hex, 16) : Number(decimal)));
}
