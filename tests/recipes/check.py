#!/usr/bin/env python3
"""Proves the recipes of CONTRIBUTING.md. Each patch beside this file follows one of them, and must be
what the recipe promises: one new file and one line. All are applied to a copy of the tree, which is
built and asked by <recipe>_test.cc whether the new thing works. The build is that of ./dev test, at the
same place of its tree, so that ccache has what the patches leave alone. Copy and build stay in
build/recipes: another run builds only what has changed."""
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build" / "recipes"
TREE = WORK / "tree"


def run(*command: str | pathlib.Path) -> str:
    """Its output; where it fails, that is the last thing said."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        said = re.sub(r"^\[\d+/\d+\].*\n", "", done.stdout, flags=re.M)  # ninja's progress
        sys.exit(f"{said}\nrecipes: failed: {' '.join(map(str, command))}")
    return done.stdout


def shape(patch: pathlib.Path) -> str:
    """The new file and the file with one line more. Anything else is not what the recipe says."""
    created = set(re.findall(r"^ create mode \d+ (.+)$", run("git", "apply", "--summary", patch), re.M))
    changed = {path: (added, removed) for added, removed, path in
               (line.split("\t") for line in run("git", "apply", "--numstat", patch).splitlines())
               if path not in created}
    if len(created) != 1 or list(changed.values()) != [("1", "0")]:
        sys.exit(f"recipes: {patch.name}: needs one new file and one line added to another; "
                 f"it creates {sorted(created)} and changes {changed} (lines added, removed)")
    return f"{created.pop()} and a line in {next(iter(changed))}"


def sync(source: pathlib.Path, target: pathlib.Path) -> None:
    """Makes target like source, leaving alone what is: its time says what has to be built. Leaves target/build."""
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for path in [path for path in target.rglob("*") if path.is_file()]:
        place = path.relative_to(target)
        if place not in wanted and place.parts[0] != "build":
            path.unlink()
    for path in wanted:
        old, new = target / path, source / path
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new, old)


def apply_all(patches: list[pathlib.Path]) -> None:
    """The working tree as git sees it, with all patches, in TREE."""
    fresh = WORK / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    for name in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, fresh / name)
    for patch in patches:
        run("git", "apply", f"--directory={fresh.relative_to(ROOT)}", patch)
    sync(fresh, TREE)
    shutil.rmtree(fresh)


def main() -> None:
    patches = sorted(HERE.glob("*.patch"))
    shapes = {patch.stem: shape(patch) for patch in patches}
    WORK.mkdir(parents=True, exist_ok=True)
    apply_all(patches)
    build = TREE / "build" / "cpu"
    run("cmake", "-S", TREE, "--preset", "cpu", "-DMORACLE_TESTS=OFF", "-DMORACLE_WERROR=ON",
        f"-DCMAKE_PROJECT_moracle_INCLUDE={TREE / 'tests/recipes/recipes.cmake'}")
    run("cmake", "--build", build, "--target", "recipes_test")
    for recipe, what in shapes.items():
        said = run(build / "recipes_test", f"--gtest_filter={recipe.capitalize()}.*", "--gtest_brief=1")
        ran = re.search(r"(\d+) tests? from 1 test suite ran", said)
        if ran is None:
            sys.exit(f"{said}\nrecipes: {recipe}_test.cc has no tests named {recipe.capitalize()}")
        print(f"recipe {recipe}: {what}; {ran[1]} tests pass")


main()
