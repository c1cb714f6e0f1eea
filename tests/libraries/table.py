"""The client libraries that are seen to work, and the page about them: docs/libraries.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.libraries.library import DRIVERS, NODE, ROOT, Library, version
from tests.libraries.readme import TABLE

_PYTHON, _AZURE = ".venv-clients-python", ".venv-clients-azure"
_RESPONSES = "its Responses API was not tried"
_ASYNC = "no asynchronous inference"
_FRIENDLI = "`stream_options`, `min_p`, `xtc_*` and an integer `logprobs` of texts are refused"
LIBRARIES = (
    *TABLE,
    Library(
        "OpenAI",
        "openai",
        "openai_python",
        ".venv",
        "openai",
        "NotFoundError",
        "APIError",
        "no images, speech, files or batches",
    ),
    Library(
        "LangChain",
        "langchain-openai",
        "langchain",
        _PYTHON,
        "openai",
        "OpenAIModelNotFoundError",
        "APIError",
        "its Responses API has a row of its own",
    ),
    Library(
        "LlamaIndex",
        "llama-index-llms-openai-like",
        "llama_index_like",
        _PYTHON,
        "openai",
        "NotFoundError",
        "APIError",
        "tools need `is_function_calling_model=True`; its class `OpenAI` takes OpenAI's models only",
    ),
    Library(
        "Pydantic AI",
        "pydantic-ai-slim",
        "pydantic_ai_agent",
        _PYTHON,
        "openai",
        "ModelHTTPError",
        "APIError",
        "no `OpenAIResponsesModel`",
    ),
    Library(
        "Instructor",
        "instructor",
        "instructor_tools",
        _PYTHON,
        "openai",
        "InstructorRetryException",
        "InstructorRetryException",
        _RESPONSES,
    ),
    Library(
        "LiteLLM",
        "litellm",
        "litellm_client",
        _PYTHON,
        "openai",
        "NotFoundError",
        "MidStreamFallbackError",
        "the name needs `openai/` before it; no `responses`",
    ),
    Library(
        "Haystack", "haystack-ai", "haystack_generator", _PYTHON, "openai", "NotFoundError", "APIError", _RESPONSES
    ),
    Library(
        "Semantic Kernel",
        "semantic-kernel",
        "semantic_kernel_chat",
        _AZURE,
        "openai",
        "ServiceResponseException",
        "APIError",
        "no agents of the Responses or Assistants API",
    ),
    Library(
        "DSPy",
        "dspy",
        "dspy_lm",
        _PYTHON,
        "openai",
        "LMUnsupportedModelError",
        "",
        'no `model_type="responses"`; streams were not tried',
    ),
    Library(
        "llm",
        "llm",
        "llm_command",
        _PYTHON,
        "openai",
        "NotFoundError",
        "APIError",
        "its line belongs into `extra-openai-models.yaml`; tools need `supports_tools: true` there",
    ),
    Library(
        "Hugging Face",
        "huggingface-hub",
        "huggingface",
        _PYTHON,
        "openai",
        "HfHubHTTPError",
        "UnknownError",
        "chats only; `text_generation` calls TGI's own API",
    ),
    Library(
        "LangChain",
        "langchain-azure-ai",
        "langchain_azure_openai",
        _AZURE,
        "openai",
        "OpenAIModelNotFoundError",
        "APIError",
        "its default is the Responses API: `use_responses_api=False` is needed",
    ),
    Library(
        "OpenAI (Node)",
        "openai",
        "openai",
        NODE,
        "openai",
        "NotFoundError",
        "APIError",
        "no images, speech, files or batches",
    ),
    Library(
        "AI SDK (Node)",
        "@ai-sdk/openai-compatible",
        "aisdk",
        NODE,
        "openai",
        "AI_APICallError",
        "AI_StreamProviderError",
        "`@ai-sdk/openai` calls the Responses API unless told otherwise: it is below",
    ),
    Library(
        "LangChain.js (Node)", "@langchain/openai", "langchain", NODE, "openai", "NotFoundError", "APIError", _RESPONSES
    ),
    Library(
        "boto3",
        "boto3",
        "boto3_runtime",
        ".venv",
        "sagemaker",
        "ValidationError",
        "EventStreamError",
        _ASYNC,
    ),
    Library(
        "aiobotocore",
        "aiobotocore",
        "aiobotocore_runtime",
        _PYTHON,
        "sagemaker",
        "ValidationError",
        "EventStreamError",
        _ASYNC,
    ),
    Library(
        "SageMaker SDK 2",
        "sagemaker",
        "sagemaker2",
        ".venv-clients-sagemaker2",
        "sagemaker",
        "ValidationError",
        "",
        "what creates or describes endpoints needs AWS; streams were not tried",
    ),
    Library(
        "SageMaker SDK 3",
        "sagemaker-core",
        "sagemaker3",
        ".venv-clients-sagemaker3",
        "sagemaker",
        "ValidationError",
        "",
        "the same; its line is an environment variable",
    ),
    Library(
        "LangChain",
        "langchain-aws",
        "langchain_sagemaker",
        _PYTHON,
        "sagemaker",
        "ValidationError",
        "",
        "bodies, tools and streams are made by the handler that its user writes; streams were not tried",
    ),
    Library(
        "AWS SDK (Node)",
        "@aws-sdk/client-sagemaker-runtime",
        "aws",
        NODE,
        "sagemaker",
        "ValidationError",
        "ModelStreamError",
        _ASYNC,
    ),
    Library(
        "Azure AI Inference",
        "azure-ai-inference",
        "azure_python",
        ".venv",
        "azure",
        "ResourceNotFoundError",
        "HttpResponseError",
        "no image embeddings; a broken stream is told without its reason",
    ),
    Library(
        "LangChain",
        "langchain-azure-ai",
        "langchain_azure",
        _AZURE,
        "azure",
        "ResourceNotFoundError",
        "HttpResponseError",
        "the class is deprecated; a broken stream is told without its reason",
    ),
    Library(
        "Azure AI Inference (Node)",
        "@azure-rest/ai-inference",
        "azure",
        NODE,
        "azure",
        "isUnexpected",
        "error",
        "raises nothing: ask `isUnexpected(reply)`, and look for `error` in a stream",
    ),
    Library(
        "Friendli, serverless",
        "friendli",
        "friendli_serverless",
        _PYTHON,
        "friendli",
        "SDKError",
        "ResponseValidationError",
        _FRIENDLI,
    ),
    Library(
        "Friendli, dedicated",
        "friendli",
        "friendli_dedicated",
        _PYTHON,
        "friendli",
        "SDKError",
        "ResponseValidationError",
        "the same",
    ),
    Library(
        "Friendli, container",
        "friendli",
        "friendli_container",
        _PYTHON,
        "friendli",
        "SDKError",
        "ResponseValidationError",
        "streams of texts: `/v1/completions` answers with the events that friendli-client reads",
    ),
    Library(
        "Friendli, old SDK",
        "friendli-client",
        "friendli_legacy",
        ".venv-friendli",
        "friendli",
        "APIError",
        "InvalidGenerationError",
        "throws away what a 404 says",
        says="is not found",
    ),
)


def configuration(library: Library) -> str:
    """The line that points the library here: what the driver's `configuration` returns, else its `connect`."""
    if library.environment == NODE:
        source = (Path(__file__).parent / "node" / f"{library.driver}.mjs").read_text()
        line = re.search(r"function connect\(.*?return (.*?);\n}", source, re.DOTALL)
        assert line is not None, library.driver
        told = re.sub(r"`\$\{url\}(.*?)`", rf'"{HERE}\1"', line[1])
        return re.sub(r"(?<=[{(] )model(?=,)|(?<=\()model(?=\))", lambda at: _model(at[0], line[1]), told)
    found: dict[str, ast.FunctionDef] = {}
    assigned: dict[str, ast.expr] = {}
    for node in ast.parse((DRIVERS / f"{library.driver}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
    body = found.get("configuration", found["connect"]).body
    for statement in body[:-1]:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            assigned[statement.targets[0].id] = statement.value
    last = body[-1]
    assert isinstance(last, ast.Return)
    assert last.value is not None
    value = _Filled(assigned).visit(last.value)
    if isinstance(value, ast.Constant):
        return str(value.value)
    return ast.unparse(value.body if isinstance(value, ast.Lambda) else value).replace("'", '"')


HERE, MODEL = "http://127.0.0.1:8080", "smollm2"


def _model(name: str, line: str) -> str:
    return f'model: "{MODEL}"' if "{ model," in line else f'"{MODEL}"'


class _Filled(ast.NodeTransformer):
    """Puts in the address and the model of `make run`, and what names stand for."""

    def __init__(self, assigned: dict[str, ast.expr]) -> None:
        self._assigned = assigned

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        said = {"url": HERE, "model": MODEL}
        return ast.Constant(
            "".join(
                said[part.value.id]
                if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name)
                else str(part.value)
                for part in node.values
                if isinstance(part, (ast.FormattedValue, ast.Constant))
            )
        )

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("model", "url"):
            return ast.Constant(MODEL if node.id == "model" else HERE)
        if node.id in self._assigned:
            value: ast.expr = self.visit(self._assigned[node.id])
            return value
        return node


HEAD = """# Client libraries

<!-- Made by `make docs` from tests/libraries. Do not edit. -->

Every library below was run against the gateway, unmodified and at this version, by `make test-clients`: a
whole chat, a streamed one, a model that does not exist, and a stream whose worker breaks off. Two columns name the
library's error. A `-` there says that its streams were not run, or that it names no model. The lines are for
`make run`; with keys, put yours for `none`. AWS's libraries also want a region and credentials, which may be anything
unless the gateway checks them ([keys](keys.md)). Those of the [table of clients](clients.md#every-clients-one-line) are
[tried further](#tried-further), by `make test-agents`, as are [Claude Code](dialects/anthropic.md) and
[Codex](dialects/responses.md#codex). The small model calls no tools and ranks nothing: it answers these two when they
offer none, and Cohere's rankings are tried with a simulated worker alone.

For all of them: there are no images and no speech.

Over a [limit](limits.md#what-a-client-sees) the header `Retry-After` says the true wait, even if that is long.
openai-python 1.x ignores more than 60 s and retries after a few seconds, into another 429; openai-python 3 does not
retry what takes more than two minutes. Libraries on top of them do the same.
"""
FURTHER = """
## Tried further

Each ran with its line of [clients](clients.md), also from the small model of `make run`. *Tools*: a conversation in
which the model calls a tool twice at once and answers then. *Failure before*: the error of a stream whose worker fails
before its first byte, after the library's own retries. *Over a limit*: what a 429 with `Retry-After` is; `waits` means
that the library asks again after that time, and has its answer.

| library | package | tools | failure before | over a limit | expired key |
|---|---|---|---|---|---|
"""
TAIL = """
## Not tried

| library | why |
|---|---|
| sagemaker 3, the whole package | it trains and deploys; sagemaker-core, its part that calls endpoints, is above |
"""


def page() -> str:
    """docs/libraries.md."""
    parts = [HEAD]
    for api in dict.fromkeys(one.api for one in LIBRARIES):
        title = (ROOT / "docs" / "dialects" / f"{api}.md").read_text().splitlines()[0].removeprefix("# ")
        parts.append(f"\n## {title}\n\n[The API](dialects/{api}.md).\n")
        parts.append("| library | package | configuration | unknown model | broken stream | what it cannot do |")
        parts.append("|---|---|---|---|---|---|")
        for one in LIBRARIES:
            if one.api == api:
                cells = (
                    one.name,
                    f"{one.package} {version(one)}",
                    f"`{configuration(one)}`",
                    _class(one.unknown),
                    _class(one.cut),
                    one.cannot,
                )
                parts.append(f"| {' | '.join(cells)} |")
    further = []
    for one in TABLE:
        assert one.further is not None
        tried = one.further
        tools = "yes" if tried.tools else "-"
        waits = _class(tried.limited) if tried.limited else "waits"
        cells = (one.name, f"{one.package} {version(one)}", tools, _class(tried.before), waits, _class(tried.expired))
        further.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n" + FURTHER + "\n".join(further) + "\n" + TAIL


def _class(name: str) -> str:
    return f"`{name}`" if name else "-"
