"""Environment variables: white space at their ends means nothing, and what cannot be meant is refused by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fray.cli import cli
from fray.cluster.current import current_cluster, environment_root
from fray.cluster.current_job import current_job
from fray.errors import InvalidInput
from fray_coordinator.store.opening import open_backend, root_url
from fray_coordinator.store.s3_access import botocore_access, plain_access
from fray_runtime.variables import check_for_libraries, read_variable
from tests.support.sources import trees
from tests.support.virtual import Cluster

TAKEN_AS_THEY_ARE = {"PATH", "TERM", "NO_COLOR"}
"""A list of folders, and two that are compared or whose presence counts."""
PASSED_ON = {
    "fray/cli/commands/run.py": "whether the value of a variable that the user names is a path",
    "fray/cli/job_options.py": "the value of a variable that the user names, for a job",
    "fray/environments.py": "secrets, for a job",
    "agents/fray_agents/provisioning/providers/command.py": "for a program",
    "agents/fray_agents/tasks/thread_task.py": "sets variables, and sets them back",
}
"""Modules that hand on or keep values and do not use them."""
NAMES = ("environ", "environb", "getenv", "getenvb", "envvar", "task_environ")
"""One of these names stands in every module in which `direct_reads` finds something."""


@pytest.mark.parametrize("text", [" value", "value\n", "\tvalue \r\n"])
def test_white_space_at_the_ends_is_removed(text: str) -> None:
    assert read_variable("FRAY_X", {"FRAY_X": text}) == "value"
    assert read_variable("FRAY_X", {"FRAY_X": "two words"}) == "two words"
    assert read_variable("FRAY_X", {"FRAY_X": " \n"}) == ""
    assert read_variable("FRAY_X", {}) is None


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        *(('"value"', "remove the quotes"), ("'value'\n", "remove the quotes"), ('value"', "remove the quotes")),
        *(("one\ntwo", "remove the line break"), ("a\rb", "remove the line break"), ("a\x1bb", "control character")),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name_and_secrets_are_not_shown(text: str, remedy: str) -> None:
    with pytest.raises(InvalidInput, match=rf"FRAY_X: .*{remedy}"):
        read_variable("FRAY_X", {"FRAY_X": text})
    with pytest.raises(InvalidInput, match=rf"AWS_SECRET_ACCESS_KEY: .*{remedy}") as told:
        read_variable("AWS_SECRET_ACCESS_KEY", {"AWS_SECRET_ACCESS_KEY": text})
    assert text.strip() not in str(told.value)


@pytest.mark.parametrize("spelling", ["{}\n", "  {}  ", "{}\r\n"])
def test_a_root_with_white_space_is_the_same_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    root = tmp_path / "root"
    assert CliRunner().invoke(cli, ["init", str(root)]).exit_code == 0
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", spelling.format(root))
    found = CliRunner().invoke(cli, ["ps", "--json"])
    assert (found.exit_code, found.stdout.strip()) == (0, "[]")
    assert environment_root() == str(root)
    assert current_cluster().root == root.as_uri()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("spelling", ['"{}"', "'{}'", "{}\nmore"])
def test_a_root_that_cannot_be_meant_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", spelling.format(tmp_path / "root"))
    for words in (["ps"], ["run", "--no-workspace", "--", "true"], ["init"]):
        found = CliRunner().invoke(cli, words)
        assert found.exit_code != 0
        assert "FRAY_CLUSTER_SPEC: " in found.stderr
    with pytest.raises(InvalidInput, match="FRAY_CLUSTER_SPEC"):
        current_cluster()
    assert not list(tmp_path.iterdir())


def test_a_namespace_of_an_option_is_read_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_NAMESPACE", raising=False)
    asked = ["reserve", "--root", "memory://none", "--cpu", "1"]
    assert "Missing option '--namespace'" in CliRunner().invoke(cli, asked).stderr
    monkeypatch.setenv("FRAY_NAMESPACE", "'mine'")
    assert "FRAY_NAMESPACE: " in CliRunner().invoke(cli, asked).stderr


@pytest.mark.parametrize("root", ["/root\n", " gs://bucket/x", '"s3://bucket"', "memory://a\nb"])
async def test_a_root_that_a_program_gives_has_no_white_space_either(cluster: Cluster, root: str) -> None:
    core = await cluster.core()
    for use in (lambda: open_backend(root, core.clock), lambda: root_url(root)):
        with pytest.raises(InvalidInput, match="root: "):
            use()


def test_keys_and_profiles_of_a_cloud_are_read_in_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a\n", "AWS_SECRET_ACCESS_KEY": " b", "AWS_REGION": "eu-west-1\r\n"}
    access = plain_access("bucket", None, keys)
    assert access is not None
    assert (access.region, access.credentials.access, access.credentials.secret) == ("eu-west-1", "a", "b")
    (tmp_path / "credentials").write_text('[it]\naws_access_key_id = "a"\naws_secret_access_key = b\n')
    named = {"AWS_PROFILE": "it\n", "AWS_SHARED_CREDENTIALS_FILE": f" {tmp_path}/credentials"}
    with pytest.raises(InvalidInput, match=r"credentials: it: aws_access_key_id: .*quotes"):
        plain_access("bucket", None, named)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:x\n")
    with pytest.raises(InvalidInput, match=r"AWS_ROLE_ARN: .*white space"):  # botocore would take it literally
        botocore_access("bucket", None)


def test_a_variable_that_a_library_reads_is_exactly_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/key.json\n")
    with pytest.raises(InvalidInput, match=r"GOOGLE_APPLICATION_CREDENTIALS: .*remove the white space"):
        check_for_libraries("GOOGLE_")
    check_for_libraries("AWS_NONE_")


def test_half_of_a_jobs_variables_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_JOB_ID", "job-1")
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "memory://x")
    with pytest.raises(InvalidInput, match=r"FRAY_ATTEMPT: .*unset FRAY_JOB_ID"):
        current_job()


# --- all code reads them in one place


def is_environment(node: ast.AST) -> bool:
    """Whether an expression is an environment: `os.environ`, `environ`, or `task_environ()`."""
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb"):
            return True
        case ast.Name(id="environ"):
            return True
        case ast.Call(func=ast.Name(id="task_environ")):
            return True
    return False


def direct_reads(tree: ast.AST) -> Iterator[str]:
    """The places where code reads a variable without `read_variable`."""
    for node in ast.walk(tree):
        name: ast.AST | None = None
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="getenv" | "getenvb"):
                yield f"line {node.lineno}: os.getenv"
            case ast.ImportFrom(module="os", names=names) if {"environ", "getenv"} & {each.name for each in names}:
                yield f"line {node.lineno}: import from os"
            case ast.Call(keywords=words) if {"envvar"} <= {each.arg for each in words}:
                if "VariableOption" not in {ast.unparse(each.value) for each in words}:
                    yield f"line {node.lineno}: envvar without VariableOption"
                continue
            case ast.Subscript(value=value, slice=name, ctx=ast.Load()) if is_environment(value):
                pass
            case ast.Attribute(value=value, attr="get" | "pop" | "setdefault") if is_environment(value):
                name = node
            case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[value]) if is_environment(value):
                pass
            case _:
                continue
        if name is not None:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_module_reads_a_variable_by_itself() -> None:
    own = "runtime/fray_runtime/variables.py"
    found = dict(trees(NAMES))
    assert own in found
    others = {name: tree for name, tree in found.items() if name != own and name not in PASSED_ON}
    reads = {name: places for name, tree in others.items() if (places := list(direct_reads(without_exempt(tree))))}
    assert not reads, "use read_variable"


def without_exempt(tree: ast.AST) -> ast.AST:
    """The code without the reads of `TAKEN_AS_THEY_ARE`."""

    class Remove(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            match node:
                case ast.Call(args=[ast.Constant(value=name), *_]) | ast.Compare(left=ast.Constant(value=name)):
                    if name in TAKEN_AS_THEY_ARE:
                        return ast.Constant(None)
            return self.generic_visit(node)

    return Remove().visit(tree)


@pytest.mark.parametrize(
    "code",
    [
        *("os.environ['X']", "os.environ.get('X')", "'X' in os.environ", "os.getenv('X')", "task_environ()['X']"),
        *("environ.get('X', '')", "from os import environ", "click.option('--x', envvar='X')", "map(environ.get, all)"),
    ],
)
def test_a_direct_read_is_found(code: str) -> None:
    assert list(direct_reads(ast.parse(code)))
    assert any(name in code for name in NAMES)
    assert not list(direct_reads(ast.parse("os.environ['X'] = y; dict(os.environ); read_variable('X', environ)")))
