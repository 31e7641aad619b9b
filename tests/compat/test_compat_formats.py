"""The named chat formats against the prompts that the model families publish, and the formatter classes."""
import pytest

from pyengine.compat.llama_cpp import llama_chat_format as formats
from pyengine.errors import RequestError, TemplateError, UnsupportedError

TALK = [{"role": "system", "content": "S"}, {"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1"},
        {"role": "user", "content": "U2"}]

PROMPTS = {
    "llama2": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "alpaca": "S\n\n### Instruction:\nU1\n\n### Response:\nA1\n\n### Instruction:\nU2\n\n### Response:\n",
    "qwen": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
            "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    "vicuna": "S USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
    "oasst_llama": "[INST] <<SYS>>\nS\n<</SYS>>\n\n<|prompter|>U1</s><|assistant|>A1</s><|prompter|>U2</s><|assistant|>",
    "baichuan2": "S<reserved_106>U1<reserved_107>A1<reserved_106>U2<reserved_107>",
    "baichuan": "S<reserved_102>U1<reserved_103>A1<reserved_102>U2<reserved_103>",
    "openbuddy": "S\n\nUser: U1\nAssistant: A1\nUser: U2\nAssistant:",
    "redpajama_incite": "S\n<human>: U1\n<bot>: A1\n<human>: U2\n<bot>:",
    "snoozy": "### Instruction:\nS\n### Prompt:\nU1\n### Response:\nA1\n### Prompt:\nU2\n### Response:\n",
    "phind": "### System Prompt\nS\n\n### User Message\nU1\n\n### Assistant\nA1\n\n### User Message\nU2\n\n### Assistant\n",
    "intel": "### System:\nS\n### User:\nU1\n### Assistant:\nA1\n### User:\nU2\n### Assistant:\n",
    "open_orca": "S<|end_of_turn|>\nUser: U1<|end_of_turn|>\nAssistant: A1<|end_of_turn|>\nUser: U2<|end_of_turn|>\nAssistant:",
    "mistrallite": "<|prompter|>S\n\nU1</s><|assistant|>A1</s><|prompter|>U2</s><|assistant|>",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nU1</s>\n<|assistant|>\nA1</s>\n<|user|>\nU2</s>\n<|assistant|>\n",
    "pygmalion": "<|system|>S<|user|>U1<|model|>A1<|user|>U2<|model|>",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
              "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    "mistral_instruct": "[INST] S\n\nU1 [/INST] A1</s>[INST] U2 [/INST]",
    "chatglm3": "<|system|>\n S<|user|>\n U1<|assistant|>\n A1<|user|>\n U2<|assistant|>",
    "openchat": "S<|end_of_turn|>GPT4 Correct User: U1<|end_of_turn|>GPT4 Correct Assistant: A1<|end_of_turn|>"
                "GPT4 Correct User: U2<|end_of_turn|>GPT4 Correct Assistant:",
    "saiga": "<s>system\nS</s>\n<s>user\nU1</s>\n<s>bot\nA1</s>\n<s>user\nU2</s>\n<s>bot\n",
    "gemma": "<start_of_turn>user\nS\n\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n<start_of_turn>user\nU2<end_of_turn>\n"
             "<start_of_turn>model\n",
}
# With a system message of their own, where none is given.
DEFAULTS = {"alpaca": "Below is an instruction", "qwen": "<|im_start|>system\nYou are a helpful", "vicuna": "A chat between",
            "snoozy": "### Instruction:\nThe prompt below", "phind": "### System Prompt\nYou are an intelligent"}


@pytest.mark.parametrize("name", PROMPTS)
def test_format(name):
    function = getattr(formats, "format_" + name)
    result = function(messages=TALK)
    assert result.prompt == PROMPTS[name]
    assert result.stop is None or not result.prompt.endswith(result.stop)
    alone = function(messages=TALK[1:2]).prompt
    assert "U1" in alone and "S\n" not in alone and "{" not in alone
    assert alone.startswith(DEFAULTS.get(name, ""))


def test_every_format_of_the_table_is_registered_and_tested():
    registry = formats.LlamaChatCompletionHandlerRegistry()
    assert len(PROMPTS) == len(formats.FORMATS) == 23
    for name in formats.FORMATS:
        assert callable(registry.get_chat_completion_handler_by_name(name))


def test_unknown_and_later_formats():
    with pytest.raises(formats.LlamaChatCompletionHandlerNotFoundException, match="nothing-like-it.*chatml"):
        formats.get_chat_completion_handler("nothing-like-it")
    with pytest.raises(UnsupportedError, match="functionary-v2"):
        formats.get_chat_completion_handler("functionary-v2")
    with pytest.raises(UnsupportedError, match="Llava15ChatHandler.*images"):
        formats.Llava15ChatHandler(clip_model_path="mmproj.gguf")
    with pytest.raises(UnsupportedError, match="MoondreamChatHandler"):
        formats.MoondreamChatHandler.from_pretrained(repo_id="a/b", filename="*mmproj*")


def test_roles_without_a_place_are_refused():
    with pytest.raises(TemplateError, match="role tool"):
        formats.format_zephyr(messages=[*TALK, {"role": "tool", "content": "T"}])


def test_jinja2_formatter():
    formatter = formats.Jinja2ChatFormatter("{{ bos_token }}{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
                                            "{% if tools %}T{{ tools | length }}{% endif %}{% if add_generation_prompt %}>{% endif %}",
                                            eos_token="<e>", bos_token="<b>", stop_token_ids=[7])
    result = formatter(messages=TALK[1:2], tools=[{"type": "function"}])
    assert result.prompt == "<b>user=U1;T1>" and result.stop == ["<e>"] and result.added_special
    assert result.stopping_criteria([1, 7], None) is True and result.stopping_criteria([7, 1], None) is False
    assert not formats.Jinja2ChatFormatter("x", "", "", add_generation_prompt=False)(messages=TALK).stop


def test_tokenizer_config():
    config = {"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token }}{{ eos_token }}"}],
              "bos_token": {"content": "<b>"}, "eos_token": "<e>"}
    assert formats.hf_tokenizer_config_to_chat_formatter(config)(messages=TALK).prompt == "<b><e>"
    with pytest.raises(RequestError, match="chat_template"):
        formats.hf_tokenizer_config_to_chat_formatter({"bos_token": None})


def test_tokenizer_config_of_a_folder(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}", "eos_token": null}')
    assert formats.hf_autotokenizer_to_chat_formatter(tmp_path)(messages=TALK[1:]).prompt == "U1"


def test_registry_refuses_a_name_twice():
    registry = formats.LlamaChatCompletionHandlerRegistry()
    with pytest.raises(ValueError, match="chatml"):
        formats.register_chat_format("chatml")(lambda **_: None)
    formats.register_chat_completion_handler("once")(print)
    assert registry.get_chat_completion_handler_by_name("once") is print
    registry.unregister_chat_handler("once")
    with pytest.raises(ValueError, match="once"):
        registry.unregister_chat_handler("once")
