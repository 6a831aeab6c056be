"""The errors that perdure raises, each with a stable code."""

from perdure.kernel.errors import (
    AgentUnavailable as AgentUnavailable,
)
from perdure.kernel.errors import (
    AlreadyRunning as AlreadyRunning,
)
from perdure.kernel.errors import (
    BadBody as BadBody,
)
from perdure.kernel.errors import (
    BadQuery as BadQuery,
)
from perdure.kernel.errors import (
    BadRequest as BadRequest,
)
from perdure.kernel.errors import (
    Conflict as Conflict,
)
from perdure.kernel.errors import (
    DatabaseOwned as DatabaseOwned,
)
from perdure.kernel.errors import (
    DeadlineExceeded as DeadlineExceeded,
)
from perdure.kernel.errors import (
    Fenced as Fenced,
)
from perdure.kernel.errors import (
    Forbidden as Forbidden,
)
from perdure.kernel.errors import (
    InvalidCron as InvalidCron,
)
from perdure.kernel.errors import (
    InvalidInput as InvalidInput,
)
from perdure.kernel.errors import (
    InvalidTimezone as InvalidTimezone,
)
from perdure.kernel.errors import (
    JobNotFound as JobNotFound,
)
from perdure.kernel.errors import (
    MethodNotAllowed as MethodNotAllowed,
)
from perdure.kernel.errors import (
    NestedOperation as NestedOperation,
)
from perdure.kernel.errors import (
    NewerSchema as NewerSchema,
)
from perdure.kernel.errors import (
    NotADatabase as NotADatabase,
)
from perdure.kernel.errors import (
    NotFound as NotFound,
)
from perdure.kernel.errors import (
    NotRunning as NotRunning,
)
from perdure.kernel.errors import (
    NotSupported as NotSupported,
)
from perdure.kernel.errors import (
    OutcomeUnknown as OutcomeUnknown,
)
from perdure.kernel.errors import (
    PerdureError as PerdureError,
)
from perdure.kernel.errors import (
    ReadOnlyDatabase as ReadOnlyDatabase,
)
from perdure.kernel.errors import (
    RequestTimeout as RequestTimeout,
)
from perdure.kernel.errors import (
    SpansEvicted as SpansEvicted,
)
from perdure.kernel.errors import (
    StartRefused as StartRefused,
)
from perdure.kernel.errors import (
    StorageClosed as StorageClosed,
)
from perdure.kernel.errors import (
    StorageError as StorageError,
)
from perdure.kernel.errors import (
    StorageFull as StorageFull,
)
from perdure.kernel.errors import (
    StorageUnavailable as StorageUnavailable,
)
from perdure.kernel.errors import (
    SuspendedOperation as SuspendedOperation,
)
from perdure.kernel.errors import (
    TooLarge as TooLarge,
)
from perdure.kernel.errors import (
    TooManyRequests as TooManyRequests,
)
from perdure.kernel.errors import (
    Unauthorized as Unauthorized,
)
from perdure.kernel.errors import (
    UnknownRoute as UnknownRoute,
)
from perdure.kernel.errors import (
    Unreachable as Unreachable,
)
from perdure.kernel.errors import (
    UnsupportedMedia as UnsupportedMedia,
)
