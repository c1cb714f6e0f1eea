"""`dragoman clients`: the environment, the configuration file or the code by which a client calls the gateway.

The table of docs/clients.md has the same lines, for `make run`; a test compares them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from gateway.cli import CommandError

ADDRESS, MODEL = "http://127.0.0.1:8080", "smollm2"
"""The gateway and the model in the lines, for which others are put."""


# ruff: noqa: E501
# Name -> its title in docs/clients.md, and the line that it needs.
CLIENTS: Mapping[str, tuple[str, str]] = {
    "claude-code": (
        "Claude Code",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL=smollm2 ANTHROPIC_DEFAULT_HAIKU_MODEL=smollm2 ANTHROPIC_DEFAULT_SONNET_MODEL=smollm2 ANTHROPIC_DEFAULT_OPUS_MODEL=smollm2",
    ),
    "codex": (
        "Codex",
        'DRAGOMAN_KEY=none codex -m smollm2 -c model_provider=dragoman -c \'model_providers.dragoman={name="dragoman", base_url="http://127.0.0.1:8080/v1", env_key="DRAGOMAN_KEY", wire_api="responses"}\'',
    ),
    "opencode": (
        "opencode",
        'OPENCODE_CONFIG_CONTENT=\'{"provider":{"dragoman":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"http://127.0.0.1:8080/v1","apiKey":"none"},"models":{"smollm2":{}}}}}\' opencode -m dragoman/smollm2',
    ),
    "qwen-code": (
        "Qwen Code",
        "OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none OPENAI_MODEL=smollm2 qwen --auth-type openai",
    ),
    "continue": (
        "Continue, in its config.yaml",
        '{name: dragoman, version: 1.0.0, schema: v1, models: [{name: smollm2, model: smollm2, provider: openai, apiBase: "http://127.0.0.1:8080/v1", apiKey: none, capabilities: [tool_use]}]}',
    ),
    "cline": ("Cline", "cline auth openai -b http://127.0.0.1:8080/v1 -k none -m smollm2"),
    "aider": ("aider", "OPENAI_API_BASE=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none aider --model openai/smollm2"),
    "gemini-cli": ("Gemini CLI", "GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8080 GEMINI_API_KEY=none gemini -m smollm2"),
    "google-genai": (
        "Google Gen AI",
        'genai.Client(api_key="none", http_options={"base_url": "http://127.0.0.1:8080"})',
    ),
    "google-genai-node": (
        "Google Gen AI (Node)",
        'new GoogleGenAI({ apiKey: "none", httpOptions: { baseUrl: "http://127.0.0.1:8080" } })',
    ),
    "ai-sdk-google": (
        "AI SDK, Google (Node)",
        'createGoogleGenerativeAI({ baseURL: "http://127.0.0.1:8080/v1beta", apiKey: "none" })("smollm2")',
    ),
    "openai-variable": ("any that reads OpenAI's variable", "OPENAI_BASE_URL=http://127.0.0.1:8080/v1"),
    "azure-openai-variable": ("any that reads Azure OpenAI's", "AZURE_OPENAI_ENDPOINT=http://127.0.0.1:8080"),
    "ollama-variable": ("any that reads Ollama's", "OLLAMA_HOST=http://127.0.0.1:8080"),
    "anthropic-python": ("Anthropic", 'Anthropic(base_url="http://127.0.0.1:8080", api_key="none")'),
    "anthropic-node": ("Anthropic (Node)", 'new Anthropic({ baseURL: "http://127.0.0.1:8080", apiKey: "none" })'),
    "langchain-anthropic": (
        "LangChain, Anthropic",
        'ChatAnthropic(base_url="http://127.0.0.1:8080", api_key="none", model="smollm2")',
    ),
    "ai-sdk-anthropic": (
        "AI SDK, Anthropic (Node)",
        'createAnthropic({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" })("smollm2")',
    ),
    "claude-agent-sdk": (
        "Claude Agent SDK",
        'ClaudeAgentOptions(model="smollm2", env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080", "ANTHROPIC_AUTH_TOKEN": "none"})',
    ),
    "openai-python": ("OpenAI, Responses", 'OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")'),
    "openai-node": ("OpenAI, Responses (Node)", 'new OpenAI({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" })'),
    "openai-agents-sdk": (
        "OpenAI Agents SDK",
        'RunConfig(model="smollm2", model_provider=OpenAIProvider(base_url="http://127.0.0.1:8080/v1", api_key="none"), tracing_disabled=True)',
    ),
    "openai-agents-node": (
        "OpenAI Agents SDK (Node)",
        'new Runner({ model: "smollm2", modelProvider: new OpenAIProvider({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" }), tracingDisabled: true })',
    ),
    "langchain-responses": (
        "LangChain, Responses",
        'ChatOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none", model="smollm2", use_responses_api=True)',
    ),
    "ai-sdk-openai": (
        "AI SDK, OpenAI (Node)",
        'createOpenAI({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "none" })("smollm2")',
    ),
    "azure-openai": (
        "OpenAI, for Azure",
        'AzureOpenAI(azure_endpoint="http://127.0.0.1:8080", api_version="2024-10-21", api_key="none")',
    ),
    "azure-openai-node": (
        "OpenAI, for Azure (Node)",
        'new AzureOpenAI({ endpoint: "http://127.0.0.1:8080", apiVersion: "2024-10-21", apiKey: "none" })',
    ),
    "ollama-python": ("Ollama", 'Client(host="http://127.0.0.1:8080")'),
    "ollama-node": (
        "Ollama (Node)",
        'new Ollama({ host: "http://127.0.0.1:8080", headers: { authorization: "Bearer none" } })',
    ),
    "langchain-ollama": ("LangChain, Ollama", 'ChatOllama(base_url="http://127.0.0.1:8080", model="smollm2")'),
    "ai-sdk-ollama": (
        "AI SDK, Ollama (Node)",
        'createOllama({ baseURL: "http://127.0.0.1:8080/api", headers: { authorization: "Bearer none" } })("smollm2")',
    ),
    "langchain-google": (
        "LangChain, Google",
        'ChatGoogleGenerativeAI(base_url="http://127.0.0.1:8080", api_key="none", model="smollm2")',
    ),
    "huggingface-tgi": ("Hugging Face, TGI", 'InferenceClient(model="http://127.0.0.1:8080/tgi", token="none")'),
    "text-generation": (
        "text-generation",
        'Client("http://127.0.0.1:8080/tgi", headers={"Authorization": "Bearer none"})',
    ),
    "langgraph": ("LangGraph", 'ChatOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none", model="smollm2")'),
    "crewai": (
        "CrewAI",
        'LLM(model="smollm2", provider="openai", base_url="http://127.0.0.1:8080/v1", api_key="none")',
    ),
    "haystack": (
        "Haystack",
        'OpenAIChatGenerator(api_base_url="http://127.0.0.1:8080/v1", api_key=Secret.from_token("none"), model="smollm2")',
    ),
    "semantic-kernel": (
        "Semantic Kernel",
        'OpenAIChatCompletion("smollm2", async_client=AsyncOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none"))',
    ),
    "dspy": ("DSPy", 'dspy.LM("openai/smollm2", api_base="http://127.0.0.1:8080/v1", api_key="none")'),
    "mistral": ("Mistral", 'Mistral(server_url="http://127.0.0.1:8080", api_key="none")'),
    "cohere": ("Cohere", 'ClientV2(base_url="http://127.0.0.1:8080", api_key="none")'),
}
# Client -> what tells it the model's context, in tokens.
_WINDOWS = {"claude-code": "CLAUDE_CODE_MAX_CONTEXT_TOKENS={tokens}", "codex": "-c model_context_window={tokens}"}
_NOTES = {
    "claude-code": (
        "ANTHROPIC_MODEL is the model of the session. The three ANTHROPIC_DEFAULT_..._MODEL are what it asks for instead of",
        "haiku (titles, subagents with `model: haiku`), sonnet and opus: without them these are Claude's own names, and a 404",
        "unless the model has the alias `claude-*`.",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS is the model's context (--max-context): without it a name that it does not know counts",
        "as 1,000,000 tokens, and it compacts its session only when the prompt was refused. CLAUDE_CODE_MAX_OUTPUT_TOKENS",
        "is the longest reply (32,000 without it).",
    ),
    "codex": (
        "model_context_window is the model's context (--max-context): Codex compacts its session before it is full.",
    ),
}
_MODEL_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,200}")
_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", choices=[*CLIENTS], help="a client (default: list them all)")
    parser.add_argument("--model", default=MODEL, help=f"the model that it asks for (default: {MODEL})")
    parser.add_argument("--gateway", metavar="URL", default=ADDRESS, help=f"the gateway (default: {ADDRESS})")
    parser.add_argument(
        "--max-context",
        metavar="N",
        type=int,
        help="the model's context in tokens, for claude-code and codex (default: none)",
    )


def run(options: argparse.Namespace) -> int:
    if options.name is None:
        wide = max(map(len, CLIENTS))
        for name, (title, _) in CLIENTS.items():
            print(f"{name:{wide}}  {title}")
        return 0
    for line in lines(options.name, options.model, options.gateway.rstrip("/"), options.max_context):
        print(line)
    return 0


def lines(name: str, model: str, gateway: str, max_context: int | None = None) -> list[str]:
    """The line that the client `name` needs, and comments on it. Raises CommandError for a value that a
    shell or a file could read as something else."""
    if not _MODEL_NAME.fullmatch(model):
        raise CommandError("--model must be letters, digits and . _ : / @ + - only")
    if not _URL.fullmatch(gateway):
        raise CommandError("--gateway must be a URL such as https://llm.example.com, without a query")
    wanted = CLIENTS[name][1]
    line = wanted.replace(ADDRESS, gateway).replace(MODEL, model)
    if max_context is not None:
        if name not in _WINDOWS or max_context < 1:
            raise CommandError(f"--max-context is a number of tokens, for {' and '.join(_WINDOWS)} only")
        line += " " + _WINDOWS[name].format(tokens=max_context)
    mark = "//" if "new " in line or line.startswith("create") else "#"
    found = [line, *(f"{mark} {note}" for note in _NOTES.get(name, ()))]
    if MODEL not in wanted:
        found.append(f"{mark} Each request names the model: {model}")
    if "none" in line:
        found.append(f"{mark} With keys, put yours for `none`.")
    return found
