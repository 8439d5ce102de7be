from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvaluationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVALUATION_STATE_UNSPECIFIED: _ClassVar[EvaluationState]
    EVALUATION_STATE_QUEUED: _ClassVar[EvaluationState]
    EVALUATION_STATE_RUNNING: _ClassVar[EvaluationState]
    EVALUATION_STATE_CANCELLING: _ClassVar[EvaluationState]
    EVALUATION_STATE_SUCCEEDED: _ClassVar[EvaluationState]
    EVALUATION_STATE_FAILED: _ClassVar[EvaluationState]
    EVALUATION_STATE_CANCELLED: _ClassVar[EvaluationState]
    EVALUATION_STATE_SUPERSEDED: _ClassVar[EvaluationState]

class ConflictPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFLICT_POLICY_UNSPECIFIED: _ClassVar[ConflictPolicy]
    CONFLICT_POLICY_USE_EXISTING: _ClassVar[ConflictPolicy]
    CONFLICT_POLICY_FAIL: _ClassVar[ConflictPolicy]
    CONFLICT_POLICY_RERUN: _ClassVar[ConflictPolicy]
EVALUATION_STATE_UNSPECIFIED: EvaluationState
EVALUATION_STATE_QUEUED: EvaluationState
EVALUATION_STATE_RUNNING: EvaluationState
EVALUATION_STATE_CANCELLING: EvaluationState
EVALUATION_STATE_SUCCEEDED: EvaluationState
EVALUATION_STATE_FAILED: EvaluationState
EVALUATION_STATE_CANCELLED: EvaluationState
EVALUATION_STATE_SUPERSEDED: EvaluationState
CONFLICT_POLICY_UNSPECIFIED: ConflictPolicy
CONFLICT_POLICY_USE_EXISTING: ConflictPolicy
CONFLICT_POLICY_FAIL: ConflictPolicy
CONFLICT_POLICY_RERUN: ConflictPolicy

class EvaluationSpec(_message.Message):
    __slots__ = ("suite", "checkpoint", "run", "step", "epoch", "timeout", "parameters")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUITE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    suite: str
    checkpoint: CheckpointSource
    run: str
    step: int
    epoch: float
    timeout: _duration_pb2.Duration
    parameters: _containers.ScalarMap[str, str]
    def __init__(self, suite: _Optional[str] = ..., checkpoint: _Optional[_Union[CheckpointSource, _Mapping]] = ..., run: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[float] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., parameters: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CheckpointSource(_message.Message):
    __slots__ = ("manifest", "uri")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    uri: str
    def __init__(self, manifest: _Optional[str] = ..., uri: _Optional[str] = ...) -> None: ...

class ResolvedSpec(_message.Message):
    __slots__ = ("suite_version", "dataset_versions", "checkpoint", "evaluator_build")
    SUITE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATASET_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_BUILD_FIELD_NUMBER: _ClassVar[int]
    suite_version: str
    dataset_versions: _containers.RepeatedScalarFieldContainer[str]
    checkpoint: str
    evaluator_build: str
    def __init__(self, suite_version: _Optional[str] = ..., dataset_versions: _Optional[_Iterable[str]] = ..., checkpoint: _Optional[str] = ..., evaluator_build: _Optional[str] = ...) -> None: ...

class MetricResult(_message.Message):
    __slots__ = ("task", "metric", "value", "standard_error", "standard_error_method", "count", "higher_is_better", "signature", "flags")
    TASK_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    STANDARD_ERROR_METHOD_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HIGHER_IS_BETTER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    task: str
    metric: str
    value: float
    standard_error: float
    standard_error_method: str
    count: int
    higher_is_better: bool
    signature: str
    flags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[str] = ..., metric: _Optional[str] = ..., value: _Optional[float] = ..., standard_error: _Optional[float] = ..., standard_error_method: _Optional[str] = ..., count: _Optional[int] = ..., higher_is_better: bool = ..., signature: _Optional[str] = ..., flags: _Optional[_Iterable[str]] = ...) -> None: ...

class TaskOutcome(_message.Message):
    __slots__ = ("task", "expected_count", "scored_count", "failed_count", "results", "error", "device_seconds")
    TASK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    SCORED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    task: str
    expected_count: int
    scored_count: int
    failed_count: int
    results: _containers.RepeatedCompositeFieldContainer[MetricResult]
    error: _status_pb2.Status
    device_seconds: float
    def __init__(self, task: _Optional[str] = ..., expected_count: _Optional[int] = ..., scored_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., results: _Optional[_Iterable[_Union[MetricResult, _Mapping]]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., device_seconds: _Optional[float] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("name", "uid", "etag", "spec", "resolved", "state", "attempt", "last_sequence", "tasks", "error", "superseded_by", "create_time", "start_time", "end_time", "statistics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_BY_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    etag: str
    spec: EvaluationSpec
    resolved: ResolvedSpec
    state: EvaluationState
    attempt: int
    last_sequence: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskOutcome]
    error: _status_pb2.Status
    superseded_by: str
    create_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    statistics: RunnerStatistics
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., etag: _Optional[str] = ..., spec: _Optional[_Union[EvaluationSpec, _Mapping]] = ..., resolved: _Optional[_Union[ResolvedSpec, _Mapping]] = ..., state: _Optional[_Union[EvaluationState, str]] = ..., attempt: _Optional[int] = ..., last_sequence: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskOutcome, _Mapping]]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., superseded_by: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., statistics: _Optional[_Union[RunnerStatistics, _Mapping]] = ...) -> None: ...

class RunnerStatistics(_message.Message):
    __slots__ = ("load_seconds", "compile_seconds", "compute_seconds", "compiled_graphs", "warm", "device")
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPILED_GRAPHS_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    load_seconds: float
    compile_seconds: float
    compute_seconds: float
    compiled_graphs: int
    warm: bool
    device: str
    def __init__(self, load_seconds: _Optional[float] = ..., compile_seconds: _Optional[float] = ..., compute_seconds: _Optional[float] = ..., compiled_graphs: _Optional[int] = ..., warm: bool = ..., device: _Optional[str] = ...) -> None: ...

class EvaluationEvent(_message.Message):
    __slots__ = ("sequence", "time", "evaluation", "state_changed", "progress", "task_finished", "bookmark")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TASK_FINISHED_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    evaluation: str
    state_changed: StateChanged
    progress: Progress
    task_finished: TaskOutcome
    bookmark: Bookmark
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., evaluation: _Optional[str] = ..., state_changed: _Optional[_Union[StateChanged, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., task_finished: _Optional[_Union[TaskOutcome, _Mapping]] = ..., bookmark: _Optional[_Union[Bookmark, _Mapping]] = ...) -> None: ...

class StateChanged(_message.Message):
    __slots__ = ("evaluation", "previous_state")
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_STATE_FIELD_NUMBER: _ClassVar[int]
    evaluation: Evaluation
    previous_state: EvaluationState
    def __init__(self, evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., previous_state: _Optional[_Union[EvaluationState, str]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("task", "phase", "done", "total", "unit")
    TASK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    task: str
    phase: str
    done: int
    total: int
    unit: str
    def __init__(self, task: _Optional[str] = ..., phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., unit: _Optional[str] = ...) -> None: ...

class Bookmark(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EvaluateCheckpointRequest(_message.Message):
    __slots__ = ("parent", "request_id", "spec", "conflict_policy")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_POLICY_FIELD_NUMBER: _ClassVar[int]
    parent: str
    request_id: str
    spec: EvaluationSpec
    conflict_policy: ConflictPolicy
    def __init__(self, parent: _Optional[str] = ..., request_id: _Optional[str] = ..., spec: _Optional[_Union[EvaluationSpec, _Mapping]] = ..., conflict_policy: _Optional[_Union[ConflictPolicy, str]] = ...) -> None: ...

class EvaluateCheckpointResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: EvaluationEvent
    def __init__(self, event: _Optional[_Union[EvaluationEvent, _Mapping]] = ...) -> None: ...

class CreateEvaluationRequest(_message.Message):
    __slots__ = ("parent", "request_id", "spec", "conflict_policy", "validate_only")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_POLICY_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    parent: str
    request_id: str
    spec: EvaluationSpec
    conflict_policy: ConflictPolicy
    validate_only: bool
    def __init__(self, parent: _Optional[str] = ..., request_id: _Optional[str] = ..., spec: _Optional[_Union[EvaluationSpec, _Mapping]] = ..., conflict_policy: _Optional[_Union[ConflictPolicy, str]] = ..., validate_only: bool = ...) -> None: ...

class CreateEvaluationResponse(_message.Message):
    __slots__ = ("evaluation", "created")
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    evaluation: Evaluation
    created: bool
    def __init__(self, evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., created: bool = ...) -> None: ...

class GetEvaluationRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetEvaluationResponse(_message.Message):
    __slots__ = ("evaluation",)
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    evaluation: Evaluation
    def __init__(self, evaluation: _Optional[_Union[Evaluation, _Mapping]] = ...) -> None: ...

class ListEvaluationsRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token", "filter", "order_by")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ORDER_BY_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    filter: str
    order_by: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., filter: _Optional[str] = ..., order_by: _Optional[str] = ...) -> None: ...

class ListEvaluationsResponse(_message.Message):
    __slots__ = ("evaluations", "next_page_token")
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    next_page_token: str
    def __init__(self, evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelEvaluationRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class CancelEvaluationResponse(_message.Message):
    __slots__ = ("evaluation",)
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    evaluation: Evaluation
    def __init__(self, evaluation: _Optional[_Union[Evaluation, _Mapping]] = ...) -> None: ...

class WatchEvaluationRequest(_message.Message):
    __slots__ = ("name", "after_sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    after_sequence: int
    def __init__(self, name: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class WatchEvaluationResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: EvaluationEvent
    def __init__(self, event: _Optional[_Union[EvaluationEvent, _Mapping]] = ...) -> None: ...
