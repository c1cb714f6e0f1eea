"""What a model's options declare of its workers."""

from __future__ import annotations

import pytest

from gateway.config import Model

OURS, THEIRS, AZURES = "http://10.0.0.5:8000", "https://api.openai.com", "https://us.openai.azure.com/openai"


@pytest.mark.parametrize(
    ("options", "system"),
    [
        ({"workers": [OURS]}, "merge"),
        ({"workers": [THEIRS]}, "keep"),
        ({"workers": [THEIRS.upper().replace("HTTPS", "https"), AZURES]}, "keep"),
        ({"workers": [THEIRS, OURS]}, "merge"),
        ({"workers": ["https://openai.com.example.com"]}, "merge"),
        ({"workers": ["https://notopenai.com"]}, "merge"),
        ({"discover": {"dns": "engines:8000"}}, "merge"),
        ({"workers": [THEIRS], "backend": "vllm"}, "merge"),
        ({"workers": [THEIRS], "system": "merge"}, "merge"),
        ({"workers": [OURS], "system": "keep"}, "keep"),
        ({"workers": [OURS], "features": ["system_turns"]}, "keep"),
        ({"workers": [OURS], "features": ["system_turns"], "system": "merge"}, "merge"),
    ],
)
def test_messages_are_merged_but_for_openai_itself(options: dict[str, object], system: str) -> None:
    declared = Model.model_validate({"backend": "openai", **options}).declared("m")
    assert (declared.system, declared.upstream_model) == (system, "m")
