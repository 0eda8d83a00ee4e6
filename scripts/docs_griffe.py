"""Extensions of Griffe, which reads the source for the API pages: fields and examples as they are meant.

`name: str = Field(default="floe", description="Name of the catalog.")` is documented by its description, and its
value is the default.
"""

import ast
import re
import textwrap
from typing import Any, Final

from griffe import Attribute, Docstring, ExprCall, ExprKeyword, Extension, Object

_FIELD: Final = ("Field", "_secret_field")
_DOCTEST: Final = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class FieldDescriptions(Extension):
    """Turns calls of `Field` into a docstring and a default."""

    def on_attribute(self, *, attr: Attribute, **kwargs: Any) -> None:
        """Read the arguments of `Field`, or of our function that calls it for secrets."""
        del kwargs
        call = attr.value
        if not isinstance(call, ExprCall) or str(call.function).rpartition(".")[2] not in _FIELD:
            return
        named = {each.name: each.value for each in call.arguments if isinstance(each, ExprKeyword)}
        texts = [each for each in call.arguments if isinstance(each, str)]
        if (text := named.get("description", next(iter(texts), None))) is not None:
            attr.docstring = Docstring(ast.literal_eval(str(text)), parent=attr)
        default = named.get("default")
        # A factory is our business, and None says no more than the type.
        attr.value = None if str(default) in ("None", "dict") else default


class Examples(Extension):
    """Gives doctests outside a section their own."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Indent doctests below `Examples:`."""
        del kwargs
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = _DOCTEST.sub(lambda test: f"Examples:\n{textwrap.indent(test[0], '    ')}", text)
