"""The SQL function `theta_sketch_agg` for sessions of Spark 4.0; Spark has it from 4.1 on.

Iceberg's runtime has the same aggregate for its own statistics, and both make the same sketch of
the same rows. Spark's registry requires a Scala function that creates the expression of a call.
Python cannot pass such a function, so it is built from handles of Java methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

FUNCTION: Final = "theta_sketch_agg"
_WITHOUT_FUNCTION: Final = "4.0."
_AGGREGATE: Final = "org.apache.spark.sql.stats.ThetaSketchAgg"


def provide(sessions: Sequence[SparkSession]) -> None:
    """Register `theta_sketch_agg(hash, 12)` where Spark does not have it.

    The size of Iceberg's aggregate cannot be chosen; it is 12.

    Args:
        sessions: sessions of one JVM that has Iceberg's runtime.
    """
    if not sessions[0].version.startswith(_WITHOUT_FUNCTION):
        return
    builder = _builder(sessions[0])
    for session in sessions:
        registry = session._jsparkSession.sessionState().functionRegistry()  # noqa: SLF001
        registry.createOrReplaceTempFunction(FUNCTION, builder, "scala_udf")


def _builder(session: SparkSession) -> Any:
    """Return Scala's `(arguments: Seq[Expression]) => new ThetaSketchAgg(arguments.head, 0, 0)`."""
    jvm: Any = session._jvm  # noqa: SLF001
    java = jvm.java.lang
    loader = java.Thread.currentThread().getContextClassLoader()
    handles, types = java.invoke.MethodHandles, java.invoke.MethodType

    def load_class(name: str) -> Any:
        return java.Class.forName(name, True, loader)

    def array(kind: Any, *items: Any) -> Any:
        elements = session.sparkContext._gateway.new_array(kind, len(items))  # noqa: SLF001
        for position, item in enumerate(items):
            elements[position] = item
        return elements

    object_class = load_class("java.lang.Object")
    expression = load_class("org.apache.spark.sql.catalyst.expressions.Expression")
    offsets = array(java.Class, java.Integer.TYPE, java.Integer.TYPE)
    constructor = handles.publicLookup().findConstructor(
        load_class(_AGGREGATE), types.methodType(java.Void.TYPE, expression, offsets)
    )
    of_one_argument = handles.insertArguments(constructor, 1, array(java.Object, 0, 0))
    head = handles.publicLookup().findVirtual(
        load_class("scala.collection.IterableOps"), "head", types.methodType(object_class)
    )
    head_expression = head.asType(types.methodType(expression, object_class))
    return java.invoke.MethodHandleProxies.asInterfaceInstance(
        load_class("scala.Function1"),
        handles.filterArguments(
            of_one_argument, 0, array(java.invoke.MethodHandle, head_expression)
        ),
    )
