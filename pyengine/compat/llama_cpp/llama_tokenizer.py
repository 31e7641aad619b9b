"""LlamaTokenizer: the vocabulary of a Llama under llama-cpp-python's names. Imported by llama of this folder, and by users."""
import abc

from ...errors import UnsupportedError


class BaseLlamaTokenizer(abc.ABC):
    @abc.abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list:
        raise NotImplementedError

    @abc.abstractmethod
    def detokenize(self, tokens, prev_tokens=None, special: bool = False) -> bytes:
        raise NotImplementedError


class LlamaTokenizer(BaseLlamaTokenizer):
    def __init__(self, llama):
        self._llm = llama._llm

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list:
        """add_bos: a beginning-of-sequence token where the file says so. Text may be bytes that are not UTF-8, or str."""
        return self._llm.tokenizer.encode(text, special=special, add_bos=None if add_bos else False, add_eos=None if add_bos else False)

    def detokenize(self, tokens, prev_tokens=None, special: bool = False) -> bytes:
        """The tokens' own bytes, which may be part of a character. After BOS the blank that encoding adds is dropped."""
        tokenizer = self._llm.tokenizer
        tokens = list(tokens)
        out = b"".join(tokenizer.piece(t, special=special) for t in tokens)
        first = prev_tokens is None and tokens and tokens[0] == tokenizer.bos and not special
        return out[1:] if first and tokenizer.add_space_prefix and out[:1] == b" " else out

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list:
        return self.tokenize(text, add_bos, special)

    def decode(self, tokens) -> str:
        return self.detokenize(tokens).decode("utf-8", errors="ignore")

    @classmethod
    def from_ggml_file(cls, path: str) -> "LlamaTokenizer":
        from .llama import Llama

        return cls(Llama(model_path=path, vocab_only=True))


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """Refused: the file's own vocabulary gives the ids that the model was trained on, which is what this class was for."""

    def __init__(self, hf_tokenizer):
        raise UnsupportedError("LlamaHFTokenizer: another tokenizer than the model file's cannot be used; leave tokenizer= out")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str) -> "LlamaHFTokenizer":
        return cls(pretrained_model_name_or_path)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list:
        raise NotImplementedError

    def detokenize(self, tokens, prev_tokens=None, special: bool = False) -> bytes:
        raise NotImplementedError
