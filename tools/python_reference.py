#!/usr/bin/env python3
"""Writes the reference of the Python package from its stubs and Python files.

    tools/python_reference.py PACKAGE > docs/python/reference.md

PACKAGE is the folder of the built package: build/cpu/python/moracle.
"""
import ast
import pathlib
import re
import sys

HEAD = """# Reference of the Python package

Written by `tools/python_reference.py` from the stubs of the built package; a test compares it. Start with
[the tutorial](../python.md). Arrays are those of numpy, torch, cupy or any library with DLPack or the buffer protocol.
"""
# Title, and the file whose public objects it holds.
PARTS = (("Functions and classes", "_moracle.pyi"), ("Experts from tensors", "experts.py"), ("Packed experts", "packed.py"),
         ("Packed linear layers", "linears.py"), ("Errors", "errors.py"),
         ("moracle.integrations.torch", "integrations/torch.py"),
         ("moracle.integrations.transformers", "integrations/transformers.py"))


def plain(node):
    """An annotation or default, without module prefixes."""
    return re.sub(r"\b(typing|collections\.abc|os|torch)\.(?=[A-Z])", "", ast.unparse(node))


def arguments(function):
    """The parameters as they are written, without self."""
    spec = function.args
    positional = spec.posonlyargs + spec.args
    defaults = [None] * (len(positional) - len(spec.defaults)) + spec.defaults
    parts = [one(*pair) for pair in zip(positional, defaults) if pair[0].arg != "self"]
    if spec.vararg or spec.kwonlyargs:
        parts.append(f"*{spec.vararg.arg}" if spec.vararg else "*")
    parts += [one(*pair) for pair in zip(spec.kwonlyargs, spec.kw_defaults)]
    if spec.kwarg:
        parts.append(f"**{spec.kwarg.arg}")
    return ", ".join(parts)


def one(argument, default):
    text = argument.arg
    if argument.annotation:
        text += f": {plain(argument.annotation)}"
    if default is not None:
        text += (" = " if argument.annotation else "=") + plain(default)
    return text


def text_of(node):
    return " ".join((ast.get_docstring(node) or "").split())


def member(node):
    """One line of a class: a property or a method."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    result = f" -> {plain(node.returns)}" if node.returns else ""
    if "property" in decorators:
        line = f"`{node.name}{result.replace(' ->', ':', 1)}`"
    else:
        line = f"`{node.name}({arguments(node)}){result}`"
    return f"- {line}" + (f": {text_of(node)}" if text_of(node) else "")


def entries(tree, public):
    for node in tree.body:
        name = getattr(node, "name", "_")
        if name.startswith("_") or public is not None and name not in public:
            continue
        if isinstance(node, ast.FunctionDef):
            result = f" -> {plain(node.returns)}" if node.returns else ""
            yield f"### {name}\n\n`{name}({arguments(node)}){result}`\n\n{text_of(node)}".rstrip()
        elif isinstance(node, ast.ClassDef):
            functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            made = next((part for part in functions if part.name == "__init__"), None)
            lines = [f"### {name}", text_of(node)]
            if made is not None:
                lines.append(f"`{name}({arguments(made)})`" + (f": {text_of(made)}" if text_of(made) else ""))
            called = [part for part in functions if not part.name.startswith("_") or part.name == "__call__"]
            lines.append("\n".join(member(part) for part in called))
            yield "\n\n".join(line for line in lines if line)


def reference(package, public):
    """Returns the page. `public`: the names that the package exports."""
    pages = [HEAD.rstrip()]
    for title, file in PARTS:
        tree = ast.parse((package / file).read_text(encoding="utf-8"))
        found = list(entries(tree, None if file.startswith("integrations") else public))
        pages += [f"## {title}", *found]
    return "\n\n".join(pages) + "\n"


def exported(package):
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    return next(ast.literal_eval(node.value) for node in tree.body
                if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    sys.stdout.write(reference(folder, exported(folder)))
