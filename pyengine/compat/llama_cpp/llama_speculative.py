"""Draft models. The engine looks up what may follow by itself and gives the same bytes with and without: a draft
model here says that it may. Imported by llama of this folder, and by users."""
import abc


class LlamaDraftModel(abc.ABC):
    @abc.abstractmethod
    def __call__(self, input_ids, /, **kwargs):
        raise NotImplementedError


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Finds the longest ending of the text, up to max_ngram_size tokens, that occurred before, and proposes what followed."""

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10):
        self.max_ngram_size, self.num_pred_tokens = max_ngram_size, num_pred_tokens

    @staticmethod
    def find_candidate_pred_tokens(input_ids, max_ngram_size: int, num_pred_tokens: int):
        import numpy as np

        ids = np.asarray(input_ids, np.intc)
        for n in range(min(max_ngram_size, len(ids) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], n)
            for start in np.flatnonzero((windows == ids[-n:]).all(axis=1)):
                following = ids[start + n:start + n + num_pred_tokens]
                if len(following):
                    return following
        return np.empty(0, np.intc)

    def __call__(self, input_ids, /, **kwargs):
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)
