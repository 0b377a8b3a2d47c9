"""Templates: the expectations in `reference_templates` are taken from airbyte-cdk 7.39.1."""

from __future__ import annotations

import ast
import copy
import re
import time
import uuid
import warnings
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import Environment

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import (
    as_mapping,
    as_nested,
    as_text,
    as_truth,
    evaluate,
    is_template,
    parse_syntax,
)
from support.declarative.reference_templates import CONTEXT, FAILING, VALUES

SECRET = "s3cr3t-t0k3n"


@pytest.fixture
def context():
    """Make the variables of templates, new for each test: a template may change lists."""
    return copy.deepcopy(CONTEXT)


def test_templates_make_what_they_make_in_the_reference():
    for text, value in VALUES:
        made = evaluate(text, copy.deepcopy(CONTEXT))
        assert (made, type(made)) == (value, type(value)), text


def test_templates_fail_that_fail_in_the_reference():
    for text in FAILING:
        with pytest.raises(ConfigurationError):
            evaluate(text, copy.deepcopy(CONTEXT))


@pytest.mark.parametrize("value", [5, 2.5, None, True, ["{{ x }}"], {"a": 1}])
def test_a_value_that_is_not_a_text_is_returned_unchanged(value):
    assert evaluate(value, {}) is value


def test_is_template_distinguishes_templates_from_plain_texts():
    texts = ["{{ a }}", "{% if a %}{% endif %}", "a {# b #}", "a", "{a}", "", "}}", "{ {"]

    assert [is_template(text) for text in texts] == [True] * 3 + [False] * 5
    assert not is_template(5)


def test_a_default_replaces_an_empty_or_missing_value(context):
    def made(text):
        return evaluate(text, context, default="{{ config.n }}")

    assert made("{{ config.missing }}") == 5
    assert made("{{ config.missing.deeper }}") == 5
    assert made("{{ config.e }}") == 5
    assert made("") == 5
    assert made("{{ config.none }}") is None
    with pytest.raises(ConfigurationError, match="refers to 'missing', which does not exist"):
        evaluate("", context, default="{{ config.missing.deeper }}")


def test_kinds_limit_what_a_text_is_read_as(context):
    assert evaluate("{{ config.ver }}", context, kinds=(str,)) == "2.10"
    assert evaluate("2.10", context, kinds=(str,)) == "2.10"
    assert evaluate("{{ 1 }}", context, kinds=(float,)) == "1"
    assert evaluate("[1]", context, kinds=(str, list)) == [1]
    assert evaluate("1", context, kinds=(str, list)) == "1"
    assert evaluate("", context, kinds=(str,)) is None


def test_plain_texts_that_are_lists_are_new_each_time():
    first = evaluate("[1]", {})
    first.append(2)

    assert evaluate("[1]", {}) == [1]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("{{ config.ver }}", "2.10"),
        ("'{{ config.ver }}'", "2.10"),
        ("{{ config.none }}", "None"),
        ("{{ config.missing }}", ""),
        ("{{ config.e }}", ""),
        ("", ""),
        ("1_000", "1000"),
        ("/items/{{ stream_partition.pid }}", "/items/7"),
        ("{{ 1 + 'a' }}", "{{ 1 + 'a' }}"),
    ],
)
def test_a_text_is_that_of_the_value(context, text, made):
    assert as_text(text, context) == made


def test_a_text_that_looks_into_what_is_missing_fails(context):
    with pytest.raises(ConfigurationError, match="refers to 'missing', which does not exist"):
        as_text("{{ config.missing.deeper }}", context)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (True, True),
        (False, False),
        ("", False),
        ("False", False),
        ("false", False),
        ("0", False),
        ("0.0", False),
        ("00", False),
        ("[]", False),
        ("()", False),
        ("{}", False),
        ("None", False),
        ("true", True),
        ("no", True),
        (" ", True),
        ("{{ config.none }}", False),
        ("{{ config.missing }}", False),
        ("{{ config.missing.deeper }}", False),
        ("{{ config.n > 3 }}", True),
        ("{{ config.n > 5 }}", False),
        ("{{ config.d }}", True),
        # A template that raises TypeError evaluates to its own text, and a text is true.
        ("{{ config.none > 1 }}", True),
    ],
)
def test_a_condition_holds_unless_it_makes_nothing(context, condition, holds):
    assert as_truth(condition, context) is holds


def test_mappings_keep_their_keys_as_texts(context):
    mapping = {"{{ config.n }}": "{{ config.n }}", "1": "2", "n": 3, "e": "", "t": "[1]"}

    assert as_mapping(mapping, context) == {"5": 5, "1": 2, "n": 3, "e": None, "t": [1]}
    assert as_mapping(mapping, context, kinds=(str, list)) == {
        "5": "5",
        "1": "2",
        "n": 3,
        "e": None,
        "t": [1],
    }


def test_nested_mappings_lose_what_becomes_none(context):
    value = {
        "{{ config.n }}": {"a": ["{{ config.f }}", 1, None], "b": {"c": ""}},
        "x": "{{ config.none }}",
        "y": None,
    }

    assert as_nested(value, context) == {5: {"a": [2.5, 1, None], "b": {}}}
    assert as_nested("{{ config.n }}", context) == 5
    with pytest.raises(ConfigurationError, match="key of a mapping"):
        as_nested({"{{ config.d }}": 1}, context)


def test_templates_read_read_only_mappings_and_slices():
    context = {
        "config": MappingProxyType({"a": {"b": 1}}),
        "stream_slice": StreamSlice(extra_fields={"name": "n"}),
    }

    assert evaluate("{{ config.a.b + config['a']['b'] }}", context) == 2
    assert evaluate("{{ stream_interval.extra_fields['name'] }}", context) == "n"


def test_macros_return_the_time():
    before = datetime.now(UTC)
    now = datetime.fromisoformat(evaluate("{{ now_utc() }}", {}))
    today = date.fromisoformat(evaluate("{{ today_utc() }}", {}))
    there = date.fromisoformat(evaluate("{{ today_with_timezone('Pacific/Tarawa') }}", {}))
    later = datetime.fromisoformat(evaluate("{{ day_delta(2) }}", {}))
    after = datetime.now(UTC)

    assert before <= now <= after
    assert before.date() <= today <= after.date()
    assert there - today in {timedelta(0), timedelta(days=1)}
    assert before <= later - timedelta(days=2) <= after
    assert evaluate("{{ day_delta(-1, '%d') ~ '!' }}", {}).endswith("!")
    assert uuid.UUID(evaluate("{{ generate_uuid() }}", {})).version == 4


@pytest.mark.parametrize("text", ["{{ nope }}", "{{ config.a }}{{ nope.b }}", "{{ range(3) }}"])
def test_an_unknown_variable_is_named_and_nothing_else_is_reported(text):
    with pytest.raises(ConfigurationError, match=r"uses `(nope|range)`, which") as refused:
        evaluate(text, {"config": {"a": SECRET}})

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ config.token.index('~') }}",
        "{{ config[config.token].x }}",
        "{{ config.token | base64decode }}",
        "{{ str_to_datetime(config.token) }}",
        "{{ today_with_timezone(config.token) }}",
        "{{ (config.token ~ '(') | regex_search(config.token ~ '(') }}",
        "{{ config.token | hash(config.token) }}",
        "{{ {}[config.token].x }}",
        "{{ config.token.format.__globals__[config.token] }}",
        "{{ [].index(config.token) }}",
    ],
)
def test_no_failure_contains_a_secret(text):
    with pytest.raises(ConfigurationError) as refused:
        as_text(text, {"config": {"token": SECRET}})

    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_a_long_template_is_cut_in_a_message():
    with pytest.raises(ConfigurationError) as refused:
        evaluate("{{ 1/0 }}" + "x" * 1000, {})

    assert "x" * 100 in refused.value.message
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ '{0.__class__.__mro__}'.format(1).x.y }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% from '/etc/passwd' import x %}",
        "{% extends '/etc/passwd' %}",
        "{{ today_with_timezone('/etc/passwd') }}",
        "{{ today_with_timezone('../../../etc/passwd') }}",
        "{{ 'a' | hash('file_digest') }}",
        "{% for x in [[1]] recursive %}{{ loop(x) }}{% endfor %}",
    ],
)
def test_templates_do_not_leave_their_sandbox(text):
    with pytest.raises(ConfigurationError):
        as_text(text, {})


DOUBLING = (
    "{{% set ns = namespace(x={start}) %}}{{% for i in 'x' * 200 %}}{{% set ns.x = {more} %}}"
)
DOUBLING += "{{% endfor %}}{{{{ ns.x }}}}"


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [0] * 10**9 }}",
        "{{ 9 ** (10**9) }}",
        "{% set x = 3 ** 20000 %}{% set x = x * x %}{{ x * x }}",
        "{{ ('f' * 100000) | int(base=16) // 7 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%(a)999999999s' % {'a': 1} }}",
        "{{ '%(a(b))999999999s' % {'a(b)': 1} }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ ('%s' * 100000) % (('a' * 100000,) * 100000) }}",
        "{{ ['%999999999d'] | map('format', 1) | list }}",
        "{{ '{:>999999999}'.format('a') }}",
        "{{ '{:>{}}'.format('a', 10**9) }}",
        "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
        "{{ ('{0}' * 100000).format('a' * 100000) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ ('a' | attr('center'))(10**9) }}",
        "{{ '\t'.expandtabs(tabsize=10**9) }}",
        "{{ ('\t' * 100000).expandtabs(100000) }}",
        "{{ (1).to_bytes(10**9, 'big') }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000) | regex_replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000) | regex_replace('a+', '\\\\g<0>' * 100000) }}",
        "{{ ('b' * 100000).join('a' * 100000) }}",
        "{{ ('a' * 100000) | list | join('b' * 100000) }}",
        "{{ 1.5 | round(10**9, 'ceil') }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ [1] | batch(10**9, 'x') | list }}",
        "{{ 'a' | center(10**9) }}",
        "{{ 'a'.translate({97: 'b'}) }}",
        "{{ lipsum(n=10**9) }}",
        "{{ day_delta(10**9) }}",
        DOUBLING.format(start="'aaaa'", more="ns.x ~ ns.x"),
        DOUBLING.format(start="'aaaa'", more="ns.x + ns.x"),
        DOUBLING.format(start="[1]", more="[ns.x, ns.x]"),
        DOUBLING.format(start="[1]", more="(ns.x, ns.x)"),
        DOUBLING.format(start="[1]", more="{{'a': ns.x, 'b': ns.x}}"),
        DOUBLING.format(start="[1]", more="dict(a=ns.x, b=ns.x)"),
        DOUBLING.format(start="[1]", more="ns.x * 2"),
        "{% set l = [1] %}{% for i in 'x' * 200 %}{% set _ = l.extend(l) %}{% endfor %}",
        "{% set l = [1] %}{% set _ = l.extend(l | map('string')) %}",
        "{% set l = [1] %}{% for x in l %}{% set _ = l.append(1) %}{% endfor %}",
        "{% set l = [1] %}{% set _ = l.append(l) %}{{ l }}",
        "{% set t = 'x' * 1000000 %}{% for a in 'x' * 90000 %}{{ 'xy' in t }}{% endfor %}",
        "{% set t = [1] * 1000000 %}{% for a in 'x' * 90000 %}{{ 2 not in t }}{% endfor %}",
        "{% for a in 'x' * 9999 %}{% for b in 'x' * 9999 %}{% endfor %}{% endfor %}",
        "{% for a in 'x' * 100000 %}" + "y" * 10000 + "{% endfor %}",
        "{% for a in 'x' * 100000 %}{{ '" + "y" * 10000 + "' }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ config" + ".a" * 5000 + " }}",
    ],
)
def test_no_template_fills_the_machine_or_holds_it_up(text):
    began = time.monotonic()

    with pytest.raises(ConfigurationError):
        evaluate(text, {"config": {}})

    # Each takes less than 3 s on a slow machine; without a bound, minutes or all of the memory.
    assert time.monotonic() - began < 20


def test_values_are_searched_as_in_python():
    given = {"record": {"l": list(range(10_000)), "t": "x" * 1_000_000, "m": {"a": 1}}}

    assert as_text("{{ 9999 in record.l and 'b' not in record.m }}", given) == "True"
    assert as_text("{{ 'xx' in record.t and 'a' in record.m and 1 in (1, 2) }}", given) == "True"
    assert as_text("{{ 'a' in record.missing }}", given) == "False"


def test_an_allowance_is_for_one_evaluation():
    text = "{% for i in 'x' * 1000 %}{{ i }}{% endfor %}"

    assert {evaluate(text, {}) for _ in range(2000)} == {"x" * 1000}


def test_large_values_pass_through():
    text = "a" * 10_000_000

    assert evaluate("{{ record.get('body') }}", {"record": {"body": text}}) == text


@pytest.mark.parametrize("text", ["-" * 100_000 + "5", "[" * 100_000, "9" * 5000, "0x" + "f" * 9])
def test_texts_that_python_cannot_read_stay_texts(text):
    made = evaluate("{{ record.a }}", {"record": {"a": text}})

    assert made in {text, 0xFFFFFFFFF}


def as_python_reads(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
    return text if isinstance(value, complex) or value is Ellipsis else value


literal_like = st.one_of(
    st.text(alphabet="0123456789+-.,_ eEjJxX'\"rRbBuUfF()[]{}:#\n\t\\TrueFalsNonset", max_size=14),
    st.text(max_size=6),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(str),
    st.datetimes().map(lambda moment: f"{moment.isoformat()}Z"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=5,
    ).map(repr),
)


@given(text=literal_like)
@example(text="2024-10-11")
@example(text="2024-10-11T01:02:03.5+01:00")
@example(text="set()")
@example(text="None, 1")
@example(text="\ufeff5")
@example(text="\x0c5")
@example(text="rb'x'")
@example(text="0")
def test_texts_are_read_as_python_reads_literals(text):
    with warnings.catch_warnings():
        # Python warns of odd escapes.
        warnings.simplefilter("ignore")
        # A constant of the manifest, which is parsed as the reference parses it.
        made = evaluate("{% set a = " + as_template_text(text) + " %}{{ a }}", {})

    expected = as_python_reads(text) if text else None
    assert (repr(made), type(made)) == (repr(expected), type(expected))


def as_template_text(text: str) -> str:
    return (
        "''.join(["
        + ",".join(f'"{letter}"' if letter not in '"\\\r\n' else repr(letter) for letter in text)
        + "])"
    )


LOOKUPS = [
    "{{ record.a }}",
    "{{ record['a'] }}",
    "{{ record.get('a') }}",
    "{{ record.get('a', '') }}",
    "{{ record.a or '' }}",
    "{{ record.a if record.a is defined else '' }}",
    "{{ (record.b or record).a | default('x') }}",
    "{% if record.a %}{{ record.a }}{% endif %}",
]


@pytest.mark.differs("tokens, keys and cursors")
@given(text=literal_like, template=st.sampled_from(LOOKUPS))
@example(text="1e5", template=LOOKUPS[0])
@example(text="0e5", template=LOOKUPS[0])
@example(text="2.10", template=LOOKUPS[0])
@example(text="1_000", template=LOOKUPS[0])
@example(text="00", template=LOOKUPS[0])
@example(text="+4912345", template=LOOKUPS[0])
@example(text="1,2", template=LOOKUPS[0])
@example(text="[1,2]", template=LOOKUPS[0])
@example(text='{"a": 1}', template=LOOKUPS[0])
@example(text="'quoted'", template=LOOKUPS[0])
@example(text="65e123456789012345678901", template=LOOKUPS[0])
@example(text="0x" + "f" * 5000, template=LOOKUPS[0])
def test_a_text_that_is_looked_up_is_sent_unchanged(text, template):
    made = evaluate(template, {"record": {"a": text}})

    # Null is printed as None: the two cannot be distinguished.
    assert str(made) in {text, text.strip()} or not text


@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=5,
    ),
    template=st.sampled_from(LOOKUPS[:3]),
)
def test_a_value_of_json_that_is_looked_up_keeps_its_type(value, template):
    made = evaluate(template, {"record": {"a": value}})

    assert (made, type(made)) == (value, type(value))


@pytest.mark.parametrize(
    ("template", "kinds", "value"),
    [
        # The manifest requires a number.
        ("{{ record.a }}", (int, float), 2.1),
        ("{{ record.a }}", (str,), "2.10"),
        ("'{{ record.a }}'", (), "2.10"),
        ("{{ record.a | float }}", (), 2.1),
        ("{{ record.a }}{{ record.b }}", (), 2.105),
        ("0{{ record.b }}e3", (), "05e3"),
        ("[{{ record.b }},{{ record.b }}]", (), [5, 5]),
        ("{{ [record.b, record.b] | join(',') }}", (), (5, 5)),
        ('{"a": {{ record.b }} }', (), {"a": 5}),
        (" {{ record.a }} ", (), "2.10"),
    ],
)
def test_what_a_template_composes_is_read_as_the_manifest_means_it(template, kinds, value):
    made = evaluate(template, {"record": {"a": "2.10", "b": 5}}, kinds=kinds)

    assert (made, type(made)) == (value, type(value))


@given(
    text=st.text(alphabet="ab \n\r{}#%\x0b\x85", max_size=12).filter(lambda t: not is_template(t))
)
def test_plain_texts_are_what_jinja_makes_of_them(text):
    made = as_text(f"'{text}", {})

    assert made == Environment(autoescape=False).from_string(f"'{text}").render()  # noqa: S701


def test_stream_state_is_refused_with_advice():
    with pytest.raises(ConfigurationError, match=re.escape("Use `stream_interval` instead.")):
        evaluate("{{ stream_state['updated_at'] }}", {"stream_state": {"updated_at": 1}})


def test_escapes_that_python_warns_of_are_kept_in_templates() -> None:
    # Warnings are errors in tests.
    template = r"{{ config.uri | regex_search('\/([a-z]+-\d+)$') }}"
    assert evaluate(template, {"config": {"uri": "https://a/b-1"}}) == "b-1"
    assert parse_syntax(template) is not None
    assert parse_syntax("{{ config.") is None
