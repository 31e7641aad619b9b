"""embed() and rerank(): beside llama.cpp, beside the reference, to the bit in any company; and what they refuse."""
import base64
import dataclasses
import json
import math
import random
import urllib.request

import numpy as np
import pytest

import tiny_gguf
from serving import client, run
from texts import PASSAGES
from tiny_gguf import Spec
from vocab_models import VOCABULARIES

from pyengine import AsyncLlama, Llama, cli, errors
from pyengine import embed as embedding
from pyengine.native import TIERS, lib, rows

BERT = Spec(arch="bert", n_ctx_train=300, pooling=1)
QWEN3 = Spec(arch="qwen3", head_dim=24, pooling=3)
NOMIC = Spec(arch="nomic-bert", n_ctx_train=300, pooling=1, rope_base=1000.0)
RANK = dataclasses.replace(BERT, pooling=4, labels=1)
FAMILIES = {"bert": BERT, "nomic-bert": NOMIC, "qwen3": QWEN3}
ACT_OF = {r.wtype: r.act for r in rows()}
ABLE = [name for name, bits in TIERS.items() if bits & lib.pe_cpu_isa() == bits]
COSINE = 0.9999


def write(folder, spec, name="tiny.gguf", **more):
    return str(tiny_gguf.write(folder / name, spec, **more))


def bge_keys():
    """The vocabulary of BGE, as a patch of a tiny file's keys; its size."""
    from pyengine.gguf import GGUF

    path = VOCABULARIES / "ggml-vocab-bert-bge.gguf"
    if not path.exists():
        pytest.skip(f"no {path.name}")
    with GGUF(path) as g:
        tokens = [bytes(x).decode() for x in g.get_strings("tokenizer.ggml.tokens")]
        t = "tokenizer.ggml."
        keys = {k: None for k in tiny_gguf.wordpiece_keys(331)}
        keys |= {k: g.get_str(k) for k in (t + "model", t + "pre")} | {k: g.get_int(k) for k in g.keys() if k.startswith(t) and k.endswith(("_id", "_count"))}
        keys |= {t + "tokens": tokens, t + "token_type": [int(x) for x in g.get_ints(t + "token_type")]}
    return keys, len(tokens)


def bge(folder, spec, name="bge.gguf"):
    keys, n = bge_keys()
    path = folder / name
    have = tiny_gguf.metadata(dataclasses.replace(spec, n_vocab=331))
    return str(tiny_gguf.write(path, dataclasses.replace(spec, n_vocab=n), keys={k: v for k, v in keys.items() if v is not None or k in have}))


def sentences(n, seed=0):
    """n texts of one word to sixty, of running English."""
    rng, words = random.Random(seed), " ".join(PASSAGES).split()
    for _ in range(n):
        at = rng.randrange(len(words))
        yield " ".join(words[at:at + rng.choice((1, 2, 5, 9, 20, 60))])


class Oracle:
    """llama.cpp's embedding server."""

    def __init__(self, path, pooling):
        llama_cpp = pytest.importorskip("xllamacpp")
        p = llama_cpp.CommonParams()
        p.model.path, p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch = path, 512, 1, 512, 512
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
        p.embedding, p.warmup, p.fit_params, p.verbosity = True, False, False, -1
        p.pooling_type = getattr(llama_cpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
        p.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = llama_cpp.Server(p)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.server = None

    def post(self, path, body):
        request = urllib.request.Request(self.server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def embed(self, texts):
        data = self.post("/v1/embeddings", {"input": texts})["data"]
        return np.array([d["embedding"] for d in sorted(data, key=lambda d: d["index"])])

    def rows(self, ids):
        """Pooling none: a row for each token."""
        (one,) = self.post("/embedding", {"content": ids, "embd_normalize": 2})
        return np.array(one["embedding"])

    def rank(self, query, documents):
        results = self.post("/v1/rerank", {"query": query, "documents": documents})["results"]
        return {r["index"]: r["relevance_score"] for r in results}


def cosines(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


# ---- beside llama.cpp -----------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("family", FAMILIES)
def test_200_texts_beside_llama_cpp(tmp_path, family, pooling):
    """BGE's vocabulary around tiny encoders, texts as such: so the tokens around them agree, too. The tiny vocabulary around qwen3."""
    texts = list(sentences(200))
    if family != "qwen3":
        path = bge(tmp_path, FAMILIES[family])
    else:
        path, rng = write(tmp_path, QWEN3), random.Random(1)
        texts = [[rng.randrange(3, 320) for _ in range(rng.choice((1, 3, 17, 60, 140)))] for _ in texts]
    with Oracle(path, pooling) as oracle:
        expected = oracle.embed(texts)
    with Llama(path) as llm:
        found = llm.embed(texts, pooling=pooling)
    worst = cosines(found, expected).min()
    print(f"{family} {pooling}: cosine at least {worst:.8f}")
    assert found.shape == (200, 64) and worst >= COSINE


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_beside_llama_cpp(tmp_path, family):
    path, rng = write(tmp_path, FAMILIES[family]), random.Random(2)
    texts = [[rng.randrange(5, 320) for _ in range(1 + i % 20)] for i in range(200)]
    with Oracle(path, "none") as oracle, Llama(path) as llm:
        found = llm.embed(texts, pooling="none")
        worst = min(cosines(mine, oracle.rows(ids)).min() for mine, ids in zip(found, texts))
    print(f"{family} none: cosine at least {worst:.8f}")
    assert worst >= COSINE


@pytest.mark.parametrize("spec", [RANK, dataclasses.replace(QWEN3, pooling=4, labels=2)], ids=["bert", "qwen3"])
def test_200_scores_beside_llama_cpp(tmp_path, spec):
    """llama.cpp leaves out the [SEP] that ends a WordPiece pair, so bert is asked without it, too."""
    path = write(tmp_path, spec)
    words, rng = tiny_gguf.WORDS, random.Random(3)
    documents = [" ".join(rng.choice(words) for _ in range(1 + i % 30)) for i in range(200)]
    with Llama(path) as llm:
        found = dict(llm.rerank("red river", documents))
        pairs = [embedding.pair(llm, "red river", d, "d") for d in documents]
        if spec.arch == "bert":
            assert pairs[0][0] == 2 and pairs[0][-1] == 3 and pairs[0].count(3) == 2
            jobs, pools = embedding._submit(llm, [p[:-1] for p in pairs], "rank", None, {})
            assert all(job.ended.wait(60) and job.error is None for job in jobs)
            found = {i: pool.score() for i, pool in enumerate(pools)}
    with Oracle(path, "rank") as oracle:
        expected = oracle.rank("red river", documents)
    a, b = (np.array([scores[i] for i in range(200)]) for scores in (found, expected))
    print(f"{spec.arch} rank: off by at most {abs(a - b).max():.2g} of a spread of {b.std():.2g}")
    assert abs(a - b).max() <= 2e-3 and b.std() > 0.01
    assert cosines(a - a.mean(), b - b.mean()) >= COSINE


@pytest.mark.parametrize("spec", [BERT, NOMIC], ids=["bert", "nomic-bert"])
def test_one_thing_wrong_is_far_from_llama_cpp(tmp_path, spec):
    rng = random.Random(4)
    texts = [[rng.randrange(5, 320) for _ in range(40)] for _ in range(3)]
    with Oracle(write(tmp_path, spec), "mean") as oracle:
        expected = oracle.embed(texts)
    for wrong in tiny_gguf.WRONG[spec.arch]:
        with Llama(write(tmp_path, spec, wrong.replace(" ", "_") + ".gguf", wrong=wrong)) as llm:
            worst = cosines(llm.embed(texts), expected).min()
        print(f"a wrong {wrong}: cosine {worst:.6f}")
        assert 1 - worst > 3 * (1 - COSINE), wrong


@pytest.mark.parametrize("spec", [BERT, NOMIC], ids=["bert", "nomic-bert"])
@pytest.mark.parametrize("weight_type", ["Q8_0", "Q4_0", "Q4_K"])
def test_quantized_beside_llama_cpp(tmp_path, weight_type, spec):
    spec = dataclasses.replace(spec, weight_type=weight_type, n_embd=256, n_ff=256)
    path, rng = write(tmp_path, spec), random.Random(5)
    texts = [[rng.randrange(5, 320) for _ in range(n)] for n in (3, 20, 90)]
    with Oracle(path, "mean") as oracle:
        expected = oracle.embed(texts)
    with Llama(path) as llm:
        assert (1 - cosines(llm.embed(texts), expected)).max() <= 1e-3


# ---- one answer -----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [BERT, NOMIC, QWEN3, dataclasses.replace(BERT, n_embd=256, n_ff=256, weight_type="Q8_0")], ids=["bert", "nomic-bert", "qwen3", "bert q8_0"])
def test_alone_in_a_batch_on_every_tier_the_same_bits(tmp_path, spec):
    """Texts of all lengths up to the context, in whatever steps they come to run. Case 147: order, and equal texts."""
    path, rng = write(tmp_path, spec), random.Random(6)
    texts = [[rng.randrange(5, 320) for _ in range(rng.choice((1, 2, 30, 64, 65, 257, 300)))] for _ in range(40)] + ["Hello", "World", "hello", "Hello"]
    for pooling in ("mean", "cls", "last"):
        with Llama(path, n_ctx=300) as llm:
            together = llm.embed(texts, pooling=pooling).view(np.int32)
            assert np.array_equal(together[-4], together[-1])
            some = range(0, len(texts), 5)
            assert all(np.array_equal(llm.embed(texts[i], pooling=pooling).view(np.int32), together[i]) for i in some)
    for isa in ABLE:
        with Llama(path, n_ctx=300, isa=isa, n_threads=1, max_seqs=9, n_batch=77, fuse=isa != "scalar") as llm:
            few = [4, 11, 43] if isa == "scalar" else range(len(texts))
            assert np.array_equal(llm.embed([texts[i] for i in few], pooling="last").view(np.int32), together[few]), isa


@pytest.mark.parametrize("spec", [BERT, NOMIC, dataclasses.replace(RANK, labels=3), QWEN3], ids=["bert", "nomic-bert", "bert rank", "qwen3"])
def test_beside_the_reference(tmp_path, spec):
    from pyengine.plan import reference

    path, rng = write(tmp_path, spec), random.Random(7)
    ids = [rng.randrange(5, 320) for _ in range(290)]
    with Llama(path) as llm:
        hidden, logits = reference.outputs(llm.program.graph, ids, ACT_OF.__getitem__)
        found = llm.embed(ids, pooling="none", normalize=False)
        assert ((found - hidden) ** 2).sum() / (hidden**2).sum() <= 1e-7
        mean = llm.embed(ids, pooling="mean", normalize=False)
        exact = np.add.accumulate(found.astype(np.float64))[-1] / len(ids)
        assert np.array_equal(mean, exact.astype(np.float32))
        if spec.labels:
            jobs, (pool,) = embedding._submit(llm, [ids], "rank", None, {})
            jobs[0].ended.wait()
            z = np.exp(logits[0] - logits[0].max())
            assert abs(pool.score() - z[0] / z.sum()) < 1e-4


@pytest.mark.parametrize("spec", [BERT, QWEN3], ids=["bert", "qwen3"])
def test_case_147_a_hundred_texts_are_what_each_is_alone(tmp_path, spec):
    rng, words = random.Random(8), tiny_gguf.WORDS
    texts = ["Hello", "World", " ".join(words * 2), "Hello"] + [" ".join(rng.choices(words, k=rng.choice((1, 3, 9, 40)))) for _ in range(96)]
    with Llama(write(tmp_path, spec)) as llm:
        together = llm.embed(texts).view(np.int32)
        assert together.shape == (100, 64) and np.array_equal(together[0], together[3]) and not np.array_equal(together[0], together[1])
        assert all(np.array_equal(llm.embed(text).view(np.int32), row) for text, row in zip(texts, together))


def test_embeddings_and_answers_share_steps(tmp_path):
    """A model that writes embeds in between, and neither changes the other."""
    with Llama(write(tmp_path, QWEN3), max_seqs=4, n_ctx=256) as llm:
        texts = [[5 + i, 9, 11, 30 + i] * 20 for i in range(6)]
        want, vectors = llm.generate([5, 6, 7], max_tokens=60, temperature=0, ignore_eos=True).tokens, llm.embed(texts)
        jobs = llm.start([[5, 6, 7], [8, 9]], max_tokens=60, temperature=0, ignore_eos=True)
        for pooling in (None, "mean"):
            again = llm.embed(texts, pooling=pooling)
            assert pooling or np.array_equal(again.view(np.int32), vectors.view(np.int32))
        jobs[0].ended.wait()
        assert jobs[0].result.tokens == want
        assert llm.logits([5, 6, 7]).shape == (3, 331)


def test_nothing_of_an_encoder_is_cached(tmp_path):
    """What a token becomes depends on what follows: a text that begins like another shares nothing with it."""
    with Llama(write(tmp_path, BERT)) as llm:
        long = [5 + i % 50 for i in range(200)]
        llm.embed([long, long[:130]])
        assert llm.stats()["cached_tokens"] == 0 and llm.stats()["pages_cached"] == [0] and llm.stats()["pages_used"] == [0]
        assert llm.stats()["steps"] == 1


# ---- arguments ------------------------------------------------------------------------------


def test_shapes_lengths_and_dimensions(tmp_path):
    with Llama(write(tmp_path, BERT)) as llm:
        one = llm.embed("hello world")
        assert one.dtype == np.float32 and one.shape == (64,) and llm.embed(["hello world"]).shape == (1, 64)
        assert abs(float((one.astype(np.float64) ** 2).sum()) - 1) < 1e-6
        raw = llm.embed("hello world", normalize=False)
        length = math.sqrt(math.fsum(float(x) ** 2 for x in raw))
        assert np.array_equal(one, (raw.astype(np.float64) / length).astype(np.float32))
        short = llm.embed("hello world", dimensions=10)
        assert short.shape == (10,) and abs(np.linalg.norm(short) - 1) < 1e-6
        assert np.array_equal(llm.embed("hello world", dimensions=10, normalize=False), raw[:10])
        assert np.array_equal(llm.embed(llm.tokenize("hello world")), one)
        rows = llm.embed(["hello", "one two"], pooling="none")
        assert isinstance(rows, list) and [r.shape for r in rows] == [(n, 64) for n in map(len, map(llm.tokenize, ("hello", "one two")))]
        assert llm.embed("").shape == (64,)              # [CLS][SEP]
        assert not np.array_equal(llm.embed("[SEP]"), llm.embed([2, 3, 3]))      # text is text


def test_the_file_says_how_it_is_pooled(tmp_path):
    for pooling, spec in (("mean", BERT), ("cls", dataclasses.replace(BERT, pooling=2)), ("last", QWEN3), ("last", dataclasses.replace(QWEN3, pooling=-1)),
                          ("mean", dataclasses.replace(BERT, pooling=0)), ("last", dataclasses.replace(QWEN3, pooling=0))):
        with Llama(write(tmp_path, spec)) as llm:
            assert embedding.pooling_of(llm.program) == pooling
            assert np.array_equal(llm.embed("hello world"), llm.embed("hello world", pooling=pooling))
    with Llama(write(tmp_path, dataclasses.replace(BERT, pooling=9))) as llm:
        with pytest.raises(errors.GGUFError, match=r"bert.pooling_type' is 9, expected 0..4"):
            llm.embed("x")


@pytest.mark.parametrize("how, match", [
    (dict(texts=[]), "texts: an empty list"), (dict(texts=3), "texts: found int"), (dict(texts=[["a"]]), r"texts\[0\]: entry 0 is 'a'"),
    (dict(texts=["a", None]), r"texts\[1\]: found NoneType"), (dict(texts=[[1, 9999]]), r"texts\[0\]: entry 1 is 9999"), (dict(texts=["a", []]), r"texts\[1\]: empty"),
    (dict(texts="a", dimensions=0), "dimensions: found 0"), (dict(texts="a", dimensions=65), "dimensions: found 65, expected a whole number 1..64"),
    (dict(texts="a", normalize=2), "normalize: found 2"), (dict(texts="a", pooling="max"), "pooling: found 'max'"), (dict(texts="a", pooling="rank"), "rerank"),
    (dict(texts="a", priority=7), "priority: found 7"),
])
def test_what_is_wrong_is_named(tmp_path, how, match):
    with Llama(write(tmp_path, BERT)) as llm, pytest.raises(errors.RequestError, match=match):
        llm.embed(**how)


def test_too_long_is_refused_by_name_and_nothing_is_cut(tmp_path):
    with Llama(write(tmp_path, BERT)) as llm:
        assert llm.n_ctx == 300 and llm.embed([5] * 300).shape == (64,)
        with pytest.raises(errors.ContextError, match=r"texts\[1\]: 301 tokens, and n_ctx is 300") as e:
            llm.embed(["hello", [5] * 301])
        assert e.value.param == "texts[1]" and e.value.n_prompt == 301
    with pytest.raises(errors.RequestError, match="n_ctx is 301, and .* has learned positions for 300"):
        Llama(write(tmp_path, BERT), n_ctx=301)


def test_models_say_what_they_cannot(tmp_path):
    with Llama(write(tmp_path, BERT)) as llm:
        for call in (lambda: llm.generate("x"), lambda: llm.chat([{"role": "user", "content": "x"}]), lambda: llm.logits([5]), lambda: llm.session(),
                     lambda: llm.choose("x", ["a", "b"]), lambda: llm.score("x", "a"), lambda: llm.start([[5]])):
            with pytest.raises(errors.UnsupportedError, match="tiny.gguf is an encoder .bert.: it writes no text; use embed"):
                call()
        with pytest.raises(errors.UnsupportedError, match="no classifier"):
            llm.rerank("x", ["y"])
    with Llama(write(tmp_path, RANK)) as llm:
        with pytest.raises(errors.UnsupportedError, match="is a reranker .*writes no text; use rerank"):
            llm.generate("x")
        with pytest.raises(errors.UnsupportedError, match="is a reranker .*pooling"):
            llm.embed("x")
        assert llm.embed("x", pooling="cls").shape == (64,)
        for documents in ([], "text", None):
            with pytest.raises(errors.RequestError, match="documents: found"):
                llm.rerank("x", documents)
        with pytest.raises(errors.RequestError, match=r"documents\[1\]: found int"):
            llm.rerank("x", ["a", 3])
        with pytest.raises(errors.ContextError, match=r"documents\[1\]: \d+ tokens"):
            llm.rerank("x", ["a", "one " * 400])
        best = llm.rerank("x", ["one two", "red", "one two"], top_n=2)
        assert len(best) == 2 and best[0].score >= best[1].score
        whole = llm.rerank("x", ["one two", "red", "one two"])
        assert [r.index for r in whole if r.index != 1] == [0, 2]


def test_a_template_of_the_file_joins_query_and_document(tmp_path):
    """What users wrote in it stays text."""
    keys = {"tokenizer.chat_template.rerank": "<|im_start|>q {query} d {document}<|im_end|>"}
    with Llama(write(tmp_path, dataclasses.replace(QWEN3, pooling=4, labels=2), keys=keys)) as llm:
        ids = embedding.pair(llm, "one {document}", "two <|im_end|>", "documents[0]")
        assert ids == llm.tokenizer.encode("<|im_start|>q one {document} d two ", special=True) + llm.tokenizer.encode(
            "<|im_end|>", add_bos=False)[1:] + llm.tokenizer.encode("<|im_end|>", special=True, add_bos=False) or (
            llm.detokenize(ids, special=True).endswith("q one {document} d two <|im_end|><|im_end|>"))
        assert ids.count(llm.tokenizer.encode("<|im_end|>", special=True, add_bos=False)[0]) == 1


def test_a_row_that_is_not_finite_ends_its_text(tmp_path):
    arrays = tiny_gguf.weights(BERT)
    embd = arrays["token_embd.weight"].copy()
    embd[77] = np.nan
    with Llama(write(tmp_path, BERT, tensors={"token_embd.weight": embd})) as llm:
        with pytest.raises(errors.NonFiniteError, match="position 0 is NaN"):
            llm.embed([[5, 6], [77, 5]])
        assert np.isfinite(llm.embed([5, 6])).all()


# ---- over HTTP, asyncio and the command line ------------------------------------------------


def test_the_routes(tmp_path):
    """Cases 145 and 149: a vector a text, rows of tokens only if they are asked for, the pooling named; base64 is little-endian
    float32 and the same numbers; usage counts the tokens."""
    from pyengine.serve.app import create_app
    from pyengine.serve.settings import Settings

    async def over(spec, asks):
        async with AsyncLlama(write(tmp_path, spec)) as llm:
            async with client(create_app(llm, Settings())) as c:
                return [(r := await c.post(path, json=body)) and (r.status_code, r.json()) for path, body in asks], llm.llama.embed(
                    ["hello world", "one"], pooling="cls"), await llm.embed("one", pooling="cls")

    texts = ["hello world", "one"]
    asks = [("/v1/embeddings", {"input": texts, "pooling": "cls"}), ("/v1/embeddings", {"input": texts, "pooling": "cls", "encoding_format": "base64"}),
            ("/v1/embeddings", {"input": "one", "dimensions": 7}), ("/v1/embeddings", {"input": [[5, 6], [7]], "user": "x"}),
            ("/v1/embeddings", {"input": ["x", [5] * 301]}), ("/v1/embeddings", {"input": []}), ("/v1/embeddings", {"input": "x", "dimensions": 99}),
            ("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/rerank", {"query": "x", "documents": ["y"]}), ("/v1/embeddings", {"input": "one", "pooling": "none"})]
    (floats, packed, short, ids, long, empty, wide, text, chat, rank, rows), vectors, alone = run(over(BERT, asks))
    assert floats[0] == 200 and np.array_equal(np.array([d["embedding"] for d in floats[1]["data"]], np.float32), vectors)
    assert [d["index"] for d in floats[1]["data"]] == [0, 1] and floats[1]["usage"]["prompt_tokens"] == floats[1]["usage"]["total_tokens"] > 4
    assert floats[1]["pooling"] == "cls" and floats[1]["object"] == "list" and floats[1]["data"][0]["object"] == "embedding"
    assert np.array_equal(np.stack([np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in packed[1]["data"]]), vectors)
    assert np.array_equal(alone, vectors[1]) and len(short[1]["data"][0]["embedding"]) == 7 and len(ids[1]["data"]) == 2
    assert short[1]["pooling"] == "mean" and len(rows[1]["data"][0]["embedding"]) == 3 and len(rows[1]["data"][0]["embedding"][0]) == 64
    assert long[0] == 400 and long[1]["error"]["param"] == "input[1]" and long[1]["error"]["code"] == "context_length_exceeded"
    assert empty[0] == wide[0] == 400 and wide[1]["error"]["param"] == "dimensions"
    for status, answer in (text, chat):
        assert status == 400 and "is an encoder" in answer["error"]["message"] and str(tmp_path) not in json.dumps(answer)
    assert rank[0] == 400 and "no classifier" in rank[1]["error"]["message"]
    asks = [("/v1/rerank", {"query": "red", "documents": ["one", {"text": "two red"}, "three"], "top_n": 2, "return_documents": True}),
            ("/v1/embeddings", {"input": "x"}), ("/rerank", {"query": "red", "texts": ["a"]})]
    (ranked, vector, named), *_ = run(over(RANK, asks))
    results = ranked[1]["results"]
    assert ranked[0] == 200 and len(results) == 2 and results[0]["relevance_score"] >= results[1]["relevance_score"] and "text" in results[0]["document"]
    assert vector[0] == named[0] == 400 and "reranker" in vector[1]["error"]["message"] and named[1]["error"]["param"] == "texts"


def test_the_command(tmp_path, capsys, monkeypatch):
    path = write(tmp_path, BERT)
    assert cli.main(["embed", "-m", path, "-p", "hello world", "-p", "one"]) == 0
    lines = capsys.readouterr().out.splitlines()
    with Llama(path) as llm:
        want = llm.embed(["hello world", "one"])
    assert np.array_equal(np.array([json.loads(line) for line in lines], np.float32), want)
    (tmp_path / "texts").write_bytes(b"hello world\r\none\n")
    assert cli.main(["embed", "-m", path, "-f", str(tmp_path / "texts"), "-o", str(tmp_path / "v.npy"), "--dimensions", "8", "--no-normalize"]) == 0
    assert np.load(tmp_path / "v.npy").shape == (2, 8)
    assert cli.main(["embed", "-m", write(tmp_path, RANK, "rank.gguf"), "--rerank", "red", "-p", "one", "-p", "red two", "--top-n", "1"]) == 0
    assert capsys.readouterr().out.split()[1] in "01"
    for wrong in (["--rerank", "x", "--pooling", "cls", "-p", "y"], ["--top-n", "3", "-p", "y"], ["-p", "y", "-f", "z"], ["--rerank", "x", "-p", "y"]):
        assert cli.main(["embed", "-m", path, *wrong]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_more_texts_than_may_wait_go_in_turns(tmp_path):
    with Llama(write(tmp_path, BERT), max_queue=3) as llm:
        texts = [[5 + i % 200, 7] for i in range(150)]
        assert np.array_equal(llm.embed(texts)[::50], np.stack([llm.embed(t) for t in texts[::50]]))


def test_one_token_beside_one_that_guesses(tmp_path):
    """A text of one token is no decode: nothing is guessed behind it."""
    with Llama(write(tmp_path, QWEN3), n_ctx=512, max_seqs=3) as llm:
        alone = llm.embed([9])
        (job,) = llm.start([[5, 6, 7] * 20], max_tokens=200, temperature=0, ignore_eos=True)
        assert all(np.array_equal(llm.embed([9]), alone) for _ in range(20))
        job.ended.wait()
        assert len(job.result.tokens) == 200
        want = job.result.tokens
    with Llama(write(tmp_path, QWEN3), n_ctx=512, speculate=None) as llm:
        assert llm.generate([5, 6, 7] * 20, max_tokens=200, temperature=0, ignore_eos=True).tokens == want


def test_an_encoder_guesses_for_nobody_and_foretells_nothing(tmp_path):
    from pyengine import evaluate

    path = write(tmp_path, dataclasses.replace(BERT, n_vocab=331, n_ctx_train=512))
    with pytest.raises(errors.RequestError, match="speculate: .*is an encoder|another vocabulary"):
        Llama(write(tmp_path, QWEN3, "q.gguf"), speculate=path)
    with pytest.raises(errors.UnsupportedError, match="it writes no text"):
        evaluate._opened(path, 128, 2)


@pytest.mark.parametrize("name, width", [("smollm2", 576), ("gemma-3-270m", 640)])
def test_case_145_models_that_write_give_a_vector_each(real_model, name, width):
    with Llama(str(real_model(name)), n_ctx=256) as llm:
        near, also, far = llm.embed(["A cat sits on the mat.", "The cat is sitting on a mat.", "Interest rates rose by two percent."], pooling="mean")
        assert near.shape == (width,) and near @ also > near @ far
        assert np.array_equal(llm.embed("A cat sits on the mat.", pooling="mean"), near)
