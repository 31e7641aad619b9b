"""Conversations of the clients that people use, scripted, against a server process over SmolLM2: OpenAI's and LangChain's."""
import asyncio
import json
import re
import time

import pytest

pytest.importorskip("starlette")
openai = pytest.importorskip("openai")
jsonschema = pytest.importorskip("jsonschema")

HELLO = [{"role": "user", "content": "Say hello."}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
          "required": ["name", "age"], "additionalProperties": False}


@pytest.fixture()
def client(smollm2_server):
    with openai.OpenAI(base_url=smollm2_server.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client, messages=HELLO, **more):
    return client.chat.completions.create(**{"model": "smollm2", "messages": messages, "temperature": 0, "max_completion_tokens": 12, **more})


# ---- OpenAI's -------------------------------------------------------------------------


def test_embeddings_as_the_client_asks_for_them_and_as_numbers(client):
    """Cases 145, 147 and 149: one vector a text of a model that writes, base64 is the client's default, equal texts are equal."""
    texts = ["Hello", "World", "The capital of France is Paris. " * 20, "Hello"]
    packed = client.embeddings.create(model="smollm2", input=texts)
    floats = client.embeddings.create(model="smollm2", input=texts, encoding_format="float")
    assert [d.index for d in packed.data] == [0, 1, 2, 3] and all(len(d.embedding) == 576 for d in packed.data)
    assert [d.embedding for d in packed.data] == [d.embedding for d in floats.data] and packed.data[0].embedding == packed.data[3].embedding
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 100 and packed.model_extra["pooling"] == "last"
    (alone,) = client.embeddings.create(model="smollm2", input=texts[2]).data
    assert alone.embedding == packed.data[2].embedding and len(client.embeddings.create(model="smollm2", input="a", dimensions=64).data[0].embedding) == 64



def test_openai_models(client):
    assert [m.id for m in client.models.list()] == ["smollm2"] and client.models.retrieve("smollm2").owned_by == "pyengine"


def test_openai_a_conversation_of_three_turns(client):
    messages = [{"role": "system", "content": "You are brief."}]
    for turn in ("Name a color.", "Another one?", "Which was first?"):
        messages.append({"role": "user", "content": turn})
        answer = ask(client, messages, seed=1)
        assert answer.choices[0].finish_reason in ("stop", "length") and answer.choices[0].message.role == "assistant"
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer.usage.prompt_tokens_details.cached_tokens >= 0 and answer.system_fingerprint.startswith("fp_")
        messages.append(answer.choices[0].message.model_dump())          # with all the nulls that the client adds
    assert len(messages) == 7 and all(m["content"] for m in messages)


def test_openai_streaming(client):
    whole = ask(client).choices[0]
    text, reasons, usage = "", [], None
    with ask(client, stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
                reasons.append(chunk.choices[0].finish_reason)
            else:
                usage = chunk.usage
    assert text == whole.message.content and reasons[-1] == whole.finish_reason and set(reasons[:-1]) == {None} and usage.completion_tokens == 12


def test_openai_a_stream_that_is_closed_early_ends_its_request(client, smollm2_server):
    stream = ask(client, stream=True, max_completion_tokens=300, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    for _ in range(3000):
        if not any(s["is_processing"] for s in smollm2_server.get("/slots")[1]):
            break
        time.sleep(0.01)
    assert not any(s["is_processing"] for s in smollm2_server.get("/slots")[1])


def test_openai_async_requests_side_by_side_are_each_as_alone(client, smollm2_server):
    alone = [ask(client, seed=i, temperature=0.9).choices[0].message.content for i in range(4)]

    async def together():
        async with openai.AsyncOpenAI(base_url=smollm2_server.url + "/v1", api_key="none", max_retries=0) as many:
            whole = [ask(many, seed=i, temperature=0.9) for i in range(4)]

            async def streamed(i):
                return "".join([c.choices[0].delta.content or "" async for c in await ask(many, seed=i, temperature=0.9, stream=True)])

            answers, texts = await asyncio.gather(asyncio.gather(*whole), asyncio.gather(*map(streamed, range(4))))
            return [a.choices[0].message.content for a in answers], texts

    answers, texts = asyncio.run(together())
    assert answers == texts == alone and len(set(alone)) > 1


def test_openai_n_logprobs_stop_and_bias(client):
    answer = ask(client, n=2, temperature=1.1, seed=2, logprobs=True, top_logprobs=3)
    assert [c.index for c in answer.choices] == [0, 1] and answer.choices[0].message.content != answer.choices[1].message.content
    for choice in answer.choices:
        assert "".join(t.token for t in choice.logprobs.content) == choice.message.content
        assert all(len(t.top_logprobs) == 3 and t.logprob <= t.top_logprobs[0].logprob for t in choice.logprobs.content)
    text = ask(client).choices[0].message.content
    assert ask(client, stop=text[3:6]).choices[0].message.content == text[:3]
    assert ask(client, logit_bias={"19556": 100}, max_completion_tokens=2).choices[0].message.content == "HelloHello"


def test_openai_completions(client):
    made = dict(model="smollm2", temperature=0, max_tokens=6, logprobs=2)
    answer = client.completions.create(prompt=["One two three", "A B C"], echo=False, **made)
    assert len(answer.choices) == 2 and all("".join(c.logprobs.tokens) == c.text for c in answer.choices)
    streamed = "".join(c.choices[0].text for c in client.completions.create(prompt="One two three", stream=True, **made))
    assert streamed == answer.choices[0].text
    assert client.completions.create(prompt=[19556], echo=True, model="smollm2", max_tokens=0).choices[0].text == "Hello"


@pytest.mark.parametrize("kind, more", [
    ("BadRequestError", {"temperature": 9e9}), ("BadRequestError", {"tools": [{"type": "function", "function": {"name": "f"}}]}), ("BadRequestError", {"extra_body": {"foo": 1}}),
    ("BadRequestError", {"messages": []}), ("BadRequestError", {"messages": [{"role": "user", "content": "a " * 600}]}), ("NotFoundError", {"model": "gpt-4o"}),
    ("APIStatusError", {"extra_body": {"deadline_ms": 0}, "messages": [{"role": "user", "content": "b " * 400}]})])
def test_openai_errors_are_of_the_class_that_the_client_has_for_them(client, kind, more):
    with pytest.raises(getattr(openai, kind)) as e:
        ask(client, **more)
    assert e.value.status_code in (400, 404, 408) and e.value.body["message"] and (e.value.param or e.value.status_code != 400)
    if "a " * 600 in str(more):
        assert e.value.code == "context_length_exceeded" and e.value.param == "messages"


def test_openai_a_deadline_is_not_asked_for_again(smollm2_server):
    """The client repeats a 408 by itself: what asks for an answer within a time would wait for it three times."""
    asked = []
    with openai.OpenAI(base_url=smollm2_server.url + "/v1", api_key="none", max_retries=2) as client:
        send, client._client.send = client._client.send, lambda *args, **how: asked.append(args) or send(*args, **how)
        with pytest.raises(openai.APIStatusError) as e:
            client.completions.create(model="smollm2", prompt="Once", extra_body={"deadline_ms": 0})
    assert e.value.status_code == 408 and len(asked) == 1


def test_openai_an_error_in_place_of_a_stream_is_an_error(client):
    with pytest.raises(openai.BadRequestError):
        ask(client, stream=True, temperature=-1)


# ---- structured output -------------------------------------------------------------------


@pytest.fixture()
def grammar():
    pytest.importorskip("llguidance")


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_openai_json_schema(client, grammar, temperature):
    format = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = ask(client, [{"role": "user", "content": "Ada is 36."}], response_format=format, temperature=temperature, seed=4, max_completion_tokens=80)
    jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)
    assert answer.choices[0].finish_reason == "stop"
    texts = ask(client, [{"role": "user", "content": "Ada is 36."}], response_format=format, temperature=temperature, seed=4, max_completion_tokens=80, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in texts) == answer.choices[0].message.content


def test_openai_parse_into_a_class(client, grammar):
    pydantic = pytest.importorskip("pydantic")
    Color = pydantic.create_model("Color", name=(str, pydantic.Field(max_length=10)), warm=(bool, ...))
    answer = client.chat.completions.parse(model="smollm2", messages=[{"role": "user", "content": "Red?"}], response_format=Color, temperature=0, max_tokens=60)
    assert isinstance(answer.choices[0].message.parsed, Color)


def test_129_openai_json_object_ends(client, grammar):
    """Blanks are bounded: it ends by itself, or at its limit inside a value; never in blanks without end."""
    parsed = 0
    for seed in range(6):
        choice = ask(client, response_format={"type": "json_object"}, seed=seed, temperature=1.0, max_completion_tokens=100).choices[0]
        assert " " * 21 not in choice.message.content and choice.message.content.lstrip().startswith("{")
        if choice.finish_reason == "stop":
            parsed += isinstance(json.loads(choice.message.content), dict)
    assert parsed


@pytest.mark.parametrize("pattern", [r"^\d+$", r"^[\w-]+$", r"^(anon-)?\d{11,}$"])
def test_134_patterns(client, grammar, pattern):
    schema = {"type": "object", "properties": {"v": {"type": "string", "pattern": pattern, "maxLength": 20}}, "required": ["v"], "additionalProperties": False}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = ask(client, response_format=format, max_completion_tokens=80).choices[0]
    assert choice.finish_reason == "stop" and re.fullmatch(pattern.strip("^$"), json.loads(choice.message.content)["v"])


@pytest.mark.parametrize("schema", [
    {"type": "object", "properties": {"foo": "bar"}}, {"type": "string", "pattern": "^*a$"}, {"$ref": "#/nowhere"}, {"type": "wrong"}, {"type": "string", "pattern": "(" * 5000},
    {"$ref": "https://example.com/schema"}])
def test_f87_f88_a_schema_that_cannot_be_honoured_is_a_400_and_ends_nothing(client, grammar, schema):
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as e:
        ask(client, response_format=format)
    assert e.value.param.startswith("response_format") and len(e.value.message) < 1000
    assert ask(client, max_completion_tokens=2).choices[0].message.content


def test_f85_f86_grammars_that_cannot_be(client, grammar):
    for body in ({"grammar": 'root ::= ("a"{0,2000}){0,2000} root'}, {"grammar": "root ::= " + "(" * 60_000}, {"regex": "("}, {"lark": "start: nothing"}, {"grammar": 'root ::= "a"', "regex": "a"}):
        with pytest.raises(openai.BadRequestError) as e:
            ask(client, extra_body=body)
        assert e.value.param in body, body


@pytest.mark.parametrize("text", ["歪", "日本語 🦙", 'q"\\'])
def test_143_131_18_forced_text_of_other_alphabets(client, grammar, text):
    grammar_text = "root ::= " + json.dumps(text, ensure_ascii=False)
    assert ask(client, extra_body={"grammar": grammar_text}).choices[0].message.content == text
    pieces = [c.choices[0].delta.content or "" for c in ask(client, stream=True, extra_body={"grammar": grammar_text})]
    assert "".join(pieces) == text and "\ufffd" not in "".join(pieces)


# ---- LangChain ---------------------------------------------------------------------------


@pytest.fixture()
def langchain(smollm2_server):
    made = pytest.importorskip("langchain_openai")

    def new(**more):
        return made.ChatOpenAI(base_url=smollm2_server.url + "/v1", api_key="none", model="smollm2", max_retries=0, **{"temperature": 0, "max_tokens": 12, **more})

    return new


def test_langchain_invoke_and_its_usage(langchain, client):
    answer = langchain().invoke([("system", "Be brief."), ("human", "Say hello.")])
    alone = ask(client, [{"role": "system", "content": "Be brief."}, *HELLO])
    assert answer.content == alone.choices[0].message.content and answer.usage_metadata["output_tokens"] == 12
    assert answer.response_metadata["finish_reason"] == "length" and answer.response_metadata["model_name"] == "smollm2"


def test_langchain_stream(langchain):
    model = langchain(stream_usage=True)
    pieces = list(model.stream("Say hello."))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert len(pieces) > 5 and whole.content == model.invoke("Say hello.").content and whole.usage_metadata["output_tokens"] == 12


def test_langchain_batch_and_a_conversation(langchain):
    model = langchain()
    questions = ["Say hello.", "Name a color.", "Count to three."]
    assert [a.content for a in model.batch(questions)] == [model.invoke(q).content for q in questions]
    messages = [("human", "Name a color.")]
    messages.append(model.invoke(messages))
    messages.append(("human", "Another?"))
    assert model.invoke(messages).content


def test_langchain_async(langchain):
    async def run():
        model = langchain()
        pieces = [p async for p in model.astream("Say hello.")]
        return "".join(p.content for p in pieces), (await model.ainvoke("Say hello.")).content

    streamed, whole = asyncio.run(run())
    assert streamed == whole


def test_langchain_structured_output(langchain, grammar):
    pydantic = pytest.importorskip("pydantic")
    Person = pydantic.create_model("Person", name=(str, pydantic.Field(max_length=12)), age=(int, pydantic.Field(ge=0, le=130)))
    model = langchain(max_tokens=80).with_structured_output(Person, method="json_schema")
    assert isinstance(model.invoke("Ada is 36 years old."), Person)
    as_dict = langchain(max_tokens=80).with_structured_output({"title": "person", **PERSON}, method="json_schema").invoke("Ada is 36 years old.")
    jsonschema.validate(as_dict, PERSON)


def test_langchain_tools_are_refused_by_name(langchain):
    model = langchain().bind_tools([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}])
    with pytest.raises(openai.BadRequestError, match="tools"):
        model.invoke("Call f.")
