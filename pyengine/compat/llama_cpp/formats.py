"""The named chat formats as templates, each written after the public description of its model family.

(jinja source, what ends a turn). Where llama-cpp-python's own format departs from the family's (a system message
dropped, a literal "{system_message}", doubled line breaks), the family's is taken. A system message that a family
has no place for goes before the first user message. Imported by llama_chat_format of this folder.
"""

# The system message, apart from the others, and whether there is one.
_SPLIT = ("{%- if messages and messages[0]['role'] == 'system' -%}{%- set system = messages[0]['content'] -%}{%- set turns = messages[1:] -%}"
          "{%- else -%}{%- set system = '' -%}{%- set turns = messages -%}{%- endif -%}")
_ROLES = ("{%- for m in turns -%}{%- if m['role'] not in ('user', 'assistant') -%}"
          "{{- raise_exception('this format has user and assistant turns, and one system message at the beginning; found the role ' ~ m['role']) -}}"
          "{%- endif -%}{%- endfor -%}")


def _turns(system, user, assistant, start, *, default="", end=""):
    """A format of one piece per turn; @ stands for the content. `start` begins the answer."""

    def quote(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"

    def piece(text, value):
        before, _, after = text.partition("@")
        return f"{{{{- {quote(before)} ~ {value} ~ {quote(after)} -}}}}"

    source = _SPLIT + _ROLES
    if default:
        source += f"{{%- set system = system or {quote(default)} -%}}"
    in_user = system is None
    if not in_user:
        source += "{%- if system -%}" + piece(system, "system") + "{%- endif -%}"
    value = "(system ~ '\\n\\n' ~ m['content'] if system and loop.first else m['content'])" if in_user else "m['content']"
    source += ("{%- for m in turns -%}{%- if m['role'] == 'user' -%}" + piece(user, value) + "{%- else -%}" + piece(assistant, "m['content']")
               + "{%- endif -%}{%- endfor -%}")
    source += f"{{%- if add_generation_prompt -%}}{{{{- {quote(start)} -}}}}{{%- endif -%}}"
    return source, end


_CHATML = ("{%- for m in messages -%}{{- '<|im_start|>' ~ m['role'] ~ '\\n' ~ m['content'] ~ '<|im_end|>\\n' -}}{%- endfor -%}"
           "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}")

FORMATS = {
    "llama-2": (
        _SPLIT + _ROLES + "{%- for m in turns -%}{%- if m['role'] == 'user' -%}"
        "{{- ('' if loop.first else bos_token) ~ '[INST] ' -}}"
        "{%- if loop.first and system -%}{{- '<<SYS>>\\n' ~ system ~ '\\n<</SYS>>\\n\\n' -}}{%- endif -%}"
        "{{- m['content'] ~ ' [/INST]' -}}{%- else -%}{{- ' ' ~ m['content'] ~ ' ' ~ eos_token -}}{%- endif -%}{%- endfor -%}", "</s>"),
    "llama-3": (
        "{%- for m in messages -%}{{- '<|start_header_id|>' ~ m['role'] ~ '<|end_header_id|>\\n\\n' ~ m['content'] ~ '<|eot_id|>' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}", "<|eot_id|>"),
    "alpaca": _turns("@\n\n", "### Instruction:\n@\n\n", "### Response:\n@\n\n", "### Response:\n", end="### Instruction:",
                     default="Below is an instruction that describes a task. Write a response that appropriately completes the request."),
    "qwen": ("{%- if not messages or messages[0]['role'] != 'system' -%}{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}"
             "{%- endif -%}" + _CHATML, "<|im_end|>"),
    "vicuna": _turns("@ ", "USER: @ ", "ASSISTANT: @</s>", "ASSISTANT:", end="</s>",
                     default="A chat between a curious user and an artificial intelligence assistant. "
                             "The assistant gives helpful, detailed, and polite answers to the user's questions."),
    "oasst_llama": _turns("[INST] <<SYS>>\n@\n<</SYS>>\n\n", "<|prompter|>@</s>", "<|assistant|>@</s>", "<|assistant|>", end="</s>"),
    "baichuan-2": _turns("@", "<reserved_106>@", "<reserved_107>@", "<reserved_107>"),
    "baichuan": _turns("@", "<reserved_102>@", "<reserved_103>@", "<reserved_103>"),
    "openbuddy": _turns("@\n\n", "User: @\n", "Assistant: @\n", "Assistant:", end="\nUser:"),
    "redpajama-incite": _turns("@\n", "<human>: @\n", "<bot>: @\n", "<bot>:", end="<human>"),
    "snoozy": _turns("### Instruction:\n@\n", "### Prompt:\n@\n", "### Response:\n@\n", "### Response:\n", end="###",
                     default="The prompt below is a question to answer, a task to complete, or a conversation to respond to; "
                             "decide which and write an appropriate response."),
    "phind": _turns("### System Prompt\n@\n\n", "### User Message\n@\n\n", "### Assistant\n@\n\n", "### Assistant\n", end="### User Message",
                    default="You are an intelligent programming assistant."),
    "intel": _turns("### System:\n@\n", "### User:\n@\n", "### Assistant:\n@\n", "### Assistant:\n", end="### User:"),
    "open-orca": _turns("@<|end_of_turn|>\n", "User: @<|end_of_turn|>\n", "Assistant: @<|end_of_turn|>\n", "Assistant:", end="<|end_of_turn|>"),
    "mistrallite": _turns(None, "<|prompter|>@</s>", "<|assistant|>@</s>", "<|assistant|>", end="</s>"),
    "zephyr": _turns("<|system|>\n@</s>\n", "<|user|>\n@</s>\n", "<|assistant|>\n@</s>\n", "<|assistant|>\n", end="</s>"),
    "pygmalion": _turns("<|system|>@", "<|user|>@", "<|model|>@", "<|model|>", end="<|user|>"),
    "chatml": (_CHATML, "<|im_end|>"),
    "mistral-instruct": _turns(None, "[INST] @ [/INST]", " @</s>", "", end="</s>"),
    "chatglm3": _turns("<|system|>\n @", "<|user|>\n @", "<|assistant|>\n @", "<|assistant|>", end="<|user|>"),
    "openchat": _turns("@<|end_of_turn|>", "GPT4 Correct User: @<|end_of_turn|>", "GPT4 Correct Assistant: @<|end_of_turn|>",
                       "GPT4 Correct Assistant:", end="<|end_of_turn|>"),
    "saiga": _turns("<s>system\n@</s>\n", "<s>user\n@</s>\n", "<s>bot\n@</s>\n", "<s>bot\n", end="</s>"),
    "gemma": _turns(None, "<start_of_turn>user\n@<end_of_turn>\n", "<start_of_turn>model\n@<end_of_turn>\n", "<start_of_turn>model\n",
                    end="<end_of_turn>"),
}

# The tools in the system message, and calls as "functions.NAME:" before their arguments.
FUNCTION_CALLING = (
    "{%- for m in messages -%}{{- '<|im_start|>' ~ m['role'] ~ '\\n' -}}"
    "{%- if m['role'] == 'system' -%}{{- m['content'] -}}{%- if tools -%}"
    "{{- '\\n\\nYou have these functions:\\n' -}}"
    "{%- for tool in tools -%}{{- '\\nfunctions.' ~ tool['function']['name'] ~ ':\\n' -}}"
    "{%- if tool['function'].get('description') -%}{{- tool['function']['description'] ~ '\\n' -}}{%- endif -%}"
    "{{- (tool['function'].get('parameters') or {}) | tojson ~ '\\n' -}}{%- endfor -%}"
    "{{- '\\nAnswer the user directly with\\n\\nmessage:\\nyour words\\n\\nor call functions with\\n\\nfunctions.NAME:\\n"
    "{\"argument\": \"value\"}' -}}{%- endif -%}"
    "{%- elif m.get('tool_calls') -%}{%- for call in m['tool_calls'] -%}"
    "{{- ('' if loop.first else '\\n') ~ 'functions.' ~ call['function']['name'] ~ ':\\n' ~ call['function']['arguments'] -}}{%- endfor -%}"
    "{%- elif m['role'] == 'assistant' and tools -%}{{- 'message:\\n' ~ m['content'] -}}"
    "{%- else -%}{{- m['content'] -}}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}")
