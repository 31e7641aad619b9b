"""The server: an ASGI app over a model. `create_app(llm, settings)` is what other hosts mount; needs the extra [server].

Not the model and not a policy of who runs when: llama.py and schedule.py. Imported by cli/serve and by users;
importing the package itself loads neither starlette nor uvicorn.
"""
from .settings import Settings

__all__ = ["Settings", "create_app"]


def create_app(llm, settings=None):
    """The ASGI app. llm: a Llama or AsyncLlama, which stays its caller's to close, or a function that opens and
    returns one: it is called in a thread when the app starts, and what it opened is closed when the app ends."""
    try:
        from .app import create_app
    except ModuleNotFoundError as e:
        if e.name.partition(".")[0] not in ("starlette", "prometheus_client"):
            raise
        raise ImportError(f"pyengine.serve needs {e.name}: pip install 'pyengine-gguf[server]'", name=e.name) from e

    return create_app(llm, settings)
