"""The drop-in on small random models: filling in the middle, several templates in one file, company."""
import threading

import pytest
import tiny_gguf

from pyengine.compat.llama_cpp import Llama, completion
from pyengine.errors import RequestError

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "f"}}


def model(tmp_path, keys=None, **spec):
    path = str(tmp_path / "tiny.gguf")
    tiny_gguf.write(path, tiny_gguf.Spec(**spec), keys=keys or {})
    return path


def test_fill_in_the_middle(tmp_path):
    fim = {f"tokenizer.ggml.fim_{part}_token_id": i for part, i in (("pre", 300), ("suf", 301), ("mid", 302))}
    with_bos = {**fim, "tokenizer.ggml.add_bos_token": True}
    llm = Llama(model(tmp_path, with_bos), verbose=False)
    bos, inner = llm.token_bos(), lambda text: llm.tokenize(text, add_bos=False)
    (prompt,) = completion._prompts(llm, "ab", "cd")
    assert prompt.tokens == [bos, 300, *inner(b"ab"), 301, *inner(b"cd"), 302] and prompt.text == "ab"
    assert completion._prompts(llm, [5, 6], "cd")[0].tokens[:4] == [bos, 300, 5, 6]
    r = llm("ab", suffix="cd", max_tokens=3, echo=True, temperature=0)
    assert r["usage"]["prompt_tokens"] == len(prompt.tokens) and r["choices"][0]["text"].startswith("ab")
    llm.spm_infill = True
    assert completion._prompts(llm, "ab", "cd")[0].tokens == [bos, 301, *inner(b"cd"), 300, *inner(b"ab"), 302]
    llm.close()
    del fim["tokenizer.ggml.fim_mid_token_id"]
    llm = Llama(model(tmp_path, fim), verbose=False)
    with pytest.raises(RequestError, match="suffix: this model's vocabulary"):
        llm("ab", suffix="cd")
    llm.close()


@pytest.mark.filterwarnings("ignore:tool_choice")
def test_templates_of_one_file(tmp_path):
    keys = {"tokenizer.chat_template.tool_use": "{{ tools[0].function.name }}{{ 'e' * 40 }}", "tokenizer.chat_template.plain": "a"}
    llm = Llama(model(tmp_path, keys, chat_template=TEMPLATE), verbose=False)
    assert llm.chat_format == "chat_template.default" and set(llm._chat_handlers) == {"chat_template." + n for n in ("default", "tool_use", "plain")}

    def n(**more):
        return llm.create_chat_completion([{"role": "user", "content": "aa"}], max_tokens=1, **more)["usage"]["prompt_tokens"]

    few, many = n(), n(tools=[TOOL])
    assert many > few == n(tools=[TOOL], tool_choice="none")     # tools that must not be called are not shown
    llm.chat_format = "chat_template.plain"
    assert n() <= few and n(tools=[TOOL]) == n()
    llm.close()


def test_company(tmp_path):
    """Threads share one Llama: everybody gets what he would get alone."""
    llm = Llama(model(tmp_path), verbose=False, n_ctx=128)
    prompts = ["a" * n for n in range(1, 9)]
    alone = [llm(p, max_tokens=24, temperature=0.9, seed=i)["choices"][0]["text"] for i, p in enumerate(prompts)]
    found = [None] * len(prompts)

    def ask(i):
        stream = llm(prompts[i], max_tokens=24, temperature=0.9, seed=i, stream=True)
        found[i] = "".join(chunk["choices"][0]["text"] for chunk in stream)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == alone
    llm.close()


def test_duplicate_bos_is_said(tmp_path, recwarn):
    llm = Llama(model(tmp_path), verbose=False)
    bos = llm.token_bos()
    llm([bos, bos, 5], max_tokens=1)
    assert any("Detected duplicate leading" in str(w.message) for w in recwarn)
    assert llm("", max_tokens=1)["usage"]["prompt_tokens"] == llm([], max_tokens=1)["usage"]["prompt_tokens"] == 1
    llm.close()
