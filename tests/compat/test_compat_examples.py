"""What llama-cpp-python's documentation shows, as programs written for it: only the import is changed before they run."""
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest
from test_catalog import HubHandler

ROOT = pathlib.Path(__file__).resolve().parents[2]
llguidance = pytest.mark.skipif(not __import__("importlib.util").util.find_spec("llguidance"), reason="needs llguidance")


@pytest.fixture
def run(real_model):
    """run(program) -> its variables. MODEL is the path of the model."""

    def run(program):
        assert "pyengine" not in program
        variables = {"MODEL": str(real_model("smollm2"))}
        program = program.replace("from llama_cpp", "from pyengine.compat.llama_cpp").replace("import llama_cpp", "import pyengine.compat.llama_cpp as llama_cpp")
        exec(compile(program, "example", "exec"), variables)
        for value in list(variables.values()):
            if type(value).__name__ == "Llama":
                value.close()
        return variables

    return run


def test_text_completion(run):
    found = run("""
from llama_cpp import Llama

llm = Llama(model_path=MODEL, n_gpu_layers=-1, seed=1337, n_ctx=2048)
output = llm("Q: Name the planets in the solar system? A: ", max_tokens=32, stop=["Q:", "\\n"], echo=True)
""")
    output = found["output"]
    text = output["choices"][0]["text"]
    assert text.startswith("Q: Name the planets in the solar system? A: ") and "\n" not in text
    assert output["choices"][0]["finish_reason"] in ("stop", "length") and output["usage"]["prompt_tokens"] == 13
    json.dumps(output)


def test_streaming_conversation(run):
    found = run("""
from llama_cpp import Llama

llm = Llama(MODEL, n_ctx=1024, verbose=False)
messages = [{"role": "system", "content": "You are a helpful assistant."}]
spoken = []
for question in ("What is the capital of France?", "And of Italy?"):
    messages.append({"role": "user", "content": question})
    answer = ""
    for chunk in llm.create_chat_completion(messages, stream=True, max_tokens=24, temperature=0):
        delta = chunk["choices"][0]["delta"]
        if "role" in delta:
            role = delta["role"]
        elif "content" in delta:
            answer += delta["content"]
    messages.append({"role": role, "content": answer})
    spoken.append(answer)
""")
    assert "Paris" in found["spoken"][0] and "Rome" in found["spoken"][1] and found["messages"][2]["role"] == "assistant"


def test_chat_format(run):
    found = run("""
from llama_cpp import Llama

llm = Llama(model_path=MODEL, chat_format="llama-2")
answer = llm.create_chat_completion(
    messages=[{"role": "system", "content": "You are an assistant who describes images."},
              {"role": "user", "content": "Describe a cat."}], max_tokens=8)
""")
    assert found["answer"]["object"] == "chat.completion" and found["llm"].chat_format == "llama-2"


@llguidance
def test_json_mode_and_schema_mode(run):
    found = run("""
import json
from llama_cpp import Llama

llm = Llama(model_path=MODEL, chat_format="chatml", seed=3)
messages = [{"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
            {"role": "user", "content": "Who won the world series in 2020"}]
free = llm.create_chat_completion(messages=messages, response_format={"type": "json_object"}, temperature=0.7, max_tokens=300)
shaped = llm.create_chat_completion(
    messages=messages, temperature=0.7, max_tokens=300,
    response_format={"type": "json_object", "schema": {"type": "object", "properties": {"team_name": {"type": "string"}}, "required": ["team_name"]}})
""")
    for name in ("free", "shaped"):
        choice = found[name]["choices"][0]
        if choice["finish_reason"] == "stop":
            value = json.loads(choice["message"]["content"])
            assert isinstance(value, dict) and (name == "free" or list(value) == ["team_name"])
        else:
            assert choice["finish_reason"] == "length" and choice["message"]["content"].startswith("{")


@llguidance
def test_streaming_conversation_with_a_schema(run):
    found = run("""
import json
from llama_cpp import Llama

llm = Llama(MODEL, n_ctx=1024, verbose=False)
schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}}, "required": ["city", "sure"]}
messages, values = [], []
for question in ("What is the capital of France?", "And of Italy?"):
    messages.append({"role": "user", "content": question})
    chunks = llm.create_chat_completion(messages, stream=True, max_tokens=80, temperature=0,
                                        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}})
    answer = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    messages.append({"role": "assistant", "content": answer})
    values.append(json.loads(answer))
""")
    assert [list(v) for v in found["values"]] == [["city", "sure"]] * 2 and all(isinstance(v["sure"], bool) for v in found["values"])


@llguidance
def test_function_calling(run):
    found = run("""
import json
from llama_cpp import Llama

llm = Llama(model_path=MODEL, chat_format="chatml-function-calling", n_ctx=1024)
answer = llm.create_chat_completion(
    messages=[{"role": "system", "content": "You are a careful assistant that calls functions where they help."},
              {"role": "user", "content": "Extract Jason is 25 years old"}],
    tools=[{"type": "function", "function": {"name": "UserDetail", "parameters": {
        "type": "object", "title": "UserDetail",
        "properties": {"name": {"title": "Name", "type": "string"}, "age": {"title": "Age", "type": "integer"}}, "required": ["name", "age"]}}}],
    tool_choice={"type": "function", "function": {"name": "UserDetail"}}, temperature=0, max_tokens=100)
call = answer["choices"][0]["message"]["tool_calls"][0]
detail = json.loads(call["function"]["arguments"])
""")
    assert set(found["detail"]) == {"name", "age"} and found["detail"]["age"] == 25 and found["call"]["function"]["name"] == "UserDetail"


@llguidance
def test_grammar(run):
    found = run('''
from llama_cpp import Llama, LlamaGrammar

grammar = LlamaGrammar.from_string(r"""
root ::= "- " item ("\\n- " item)*
item ::= [a-z]+
""", verbose=False)
llm = Llama(MODEL, verbose=False)
text = llm("Some fruits:\\n", grammar=grammar, max_tokens=24, temperature=0)["choices"][0]["text"]
''')
    assert all(line.startswith("- ") and line[2:].islower() or line == "-" for line in found["text"].rstrip().split("\n"))


def test_prompt_lookup(run):
    found = run("""
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

llama = Llama(model_path=MODEL, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10))
plain = Llama(model_path=MODEL)
a, b = (m("1, 2, 3, 1, 2, 3, 1, 2,", max_tokens=24, temperature=0)["choices"][0]["text"] for m in (llama, plain))
""")
    assert found["a"] == found["b"] and found["a"].startswith(" 3")


def test_tokens_one_by_one(run):
    found = run("""
import llama_cpp

llm = llama_cpp.Llama(model_path=MODEL, verbose=False)
tokens = llm.tokenize(b"The capital of France is")
text = b""
for token in llm.generate(tokens, top_k=40, top_p=0.95, temp=0.0, repeat_penalty=1.0):
    text += llm.detokenize([token])
    if token == llm.token_eos() or b"." in text:
        break
state = llm.save_state()
llm.reset()
llm.load_state(state)
""")
    assert found["text"] == b" Paris." and found["llm"].n_tokens == len(found["tokens"]) + 1


def test_embeddings_say_that_they_come_later(run):
    with pytest.raises(Exception, match="embeddings are not supported yet"), pytest.warns(RuntimeWarning):
        run("""
import llama_cpp

llama_cpp.llama.options._said.clear()
llm = llama_cpp.Llama(model_path=MODEL, embedding=True)
llm.create_embedding("Hello, world!")
""")


def test_from_pretrained(tmp_path):
    """The real hub library on a local server."""
    pytest.importorskip("huggingface_hub")
    import tiny_gguf

    tiny_gguf.write(str(tmp_path / "tiny.gguf"), tiny_gguf.Spec())
    data = (tmp_path / "tiny.gguf").read_bytes()

    class Hub(HubHandler):
        files = {"tiny-q8_0.gguf": data, "tiny-f16.gguf": data, "notes.txt": b"notes"}

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    program = """
from pyengine.compat.llama_cpp import Llama
llm = Llama.from_pretrained(repo_id="some/model", filename="*q8_0.gguf", additional_files=["notes*"], verbose=False, n_ctx=32)
print(llm.n_ctx(), llm.n_vocab(), llm("a", max_tokens=3)["usage"]["completion_tokens"] <= 3)
for name in ("*.gguf", "*Q2*"):
    try: Llama.from_pretrained("some/model", name)
    except ValueError as e: print(str(e).split("\\n")[0], "notes.txt" in str(e))
"""
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
    env.update(HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}", HF_HOME=str(tmp_path / "hub"), PYTHONPATH=str(ROOT), HF_HUB_DISABLE_XET="1",
               HF_HUB_DISABLE_TELEMETRY="1")
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=120)
    finally:
        server.shutdown()
    assert done.stdout.splitlines() == ["32 331 True", "Multiple files found in some/model matching *.gguf True",
                                        "No file found in some/model that match *Q2* True"], done.stderr[-2000:]
