"""The values that cross the hooks: frozen, keyword-only, and nothing but data.

Engines return these; core acts on them. An engine opens no connection, starts no process and builds
no shell string, so a dry run is free and an engine's tests need no GPU.

Units are in the names: `_bytes`, `_s` (seconds). Sizes that are not known are None, never 0.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen


def _empty() -> dict[str, Any]:
    return {}


# -- Findings -----------------------------------------------------------------------------------


class Verdict(enum.Enum):
    """Whether something can run, ordered from good to bad by `severity`."""

    RUNNABLE = "runnable"
    """Every question that applies has a good answer. It never means that the answers are correct."""
    DEGRADED = "degraded"
    """It runs, with less than it could have."""
    UNKNOWN = "unknown"
    """Nobody knows: a fact is missing. No fact is never RUNNABLE."""
    UNRUNNABLE = "unrunnable"
    """It cannot run, and a finding says why."""

    @property
    def severity(self) -> int:
        return list(Verdict).index(self)


class Evidence(enum.Enum):
    """How a finding is known, ordered from weak to strong by `strength`."""

    DECLARED = "declared"
    """A table, a README or a recipe says so."""
    PROBED = "probed"
    """Seen on the machine or in the binary."""
    OBSERVED = "observed"
    """It was run."""

    @property
    def strength(self) -> int:
        return list(Evidence).index(self)


class Kind(enum.Enum):
    """What a finding is about; the kinds are folded apart."""

    HARDWARE = "hardware"
    """Compute capability, host architecture, memory, driver ..."""
    SERVING = "serving"
    """Is there a server to benchmark?"""
    SANITY = "sanity"
    """Does it answer sense?"""
    CONFIGURATION = "configuration"
    """Files, options and packages that the recipe names."""


@frozen(kw_only=True)
class Finding:
    """One check's outcome.

    `question` is a short stable name (`sm`, `memory`, `model`); within a question the strongest
    evidence wins, and `--despite QUESTION` goes on against it. `reason` is one sentence; `source`
    says where it comes from, so that a person can look. `next_step` says what to do about a no.
    `recheck_when` says what would make one look again.
    """

    question: str
    verdict: Verdict
    reason: str
    source: str
    kind: Kind = Kind.HARDWARE
    evidence: Evidence = Evidence.DECLARED
    engine_version: str | None = None
    date: datetime.date | None = None
    next_step: str | None = None
    recheck_when: str | None = None


# -- Nodes --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Gpu:
    """One accelerator. `target` is the compute capability (`9.0`, `12.1`) or AMD's name (`gfx942`).

    `unified` says that its memory is the host's: `memory_bytes` is then the host's memory.
    """

    name: str
    target: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    uuid: str | None = None
    unified: bool = False


@frozen(kw_only=True)
class Disk:
    """A filesystem, seen from `path`: how large it is and what an ordinary user may still write."""

    path: str
    total_bytes: int
    free_bytes: int


@frozen(kw_only=True)
class Fact:
    """One thing that was found out about a node: `value` is for people, `source` says where to look."""

    name: str
    value: str
    source: str


@frozen(kw_only=True)
class Node:
    """A host and what it has. None means not known; `gpus=()` means that it has none.

    A hypothetical node stands for hardware that one only plans to buy: nothing on it can be probed.
    `cuda` is the newest CUDA version that its driver serves (`13.0`); `docker` is the path of the
    Docker client; `facts` say of each value where it comes from, and of what could not be found why.
    """

    name: str
    arch: str | None = None
    os: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    cuda: str | None = None
    docker: str | None = None
    disks: tuple[Disk, ...] = ()
    facts: tuple[Fact, ...] = ()
    hypothetical: bool = False


# -- Recipes and lanes ----------------------------------------------------------------------------


@frozen(kw_only=True)
class Model:
    """What a lane serves.

    `name` is the name under which clients ask for it. Where it comes from is one of: `path`, a file
    or folder on the nodes; `package`, the Python distribution that carries it; `repo` (with
    `revision`), a repository of a model hub. `size_bytes` are its weights as they lie on disk.
    `location` says where the ranks read them from: each node's own disk, or storage that the nodes
    share over the network; None is not known.
    """

    name: str
    path: str | None = None
    package: str | None = None
    repo: str | None = None
    revision: str | None = None
    quantization: str | None = None
    size_bytes: int | None = None
    location: Literal["node", "network"] | None = None


@frozen(kw_only=True)
class Mount:
    """A path of the host made visible in a container."""

    source: str
    target: str
    read_only: bool = True


@frozen(kw_only=True)
class Artifact:
    """A file or folder whose GPU code decides whether a lane can run: what it holds counts for more than
    what any table declares.

    `path` is a shared object, a wheel, a folder or a saved image. `decides` are patterns
    (`*common_ops*`) of the libraries that the recipe's backends load; empty means all that hold code.
    """

    path: str
    decides: tuple[str, ...] = ()


@frozen(kw_only=True)
class Copy:
    """Files that every node needs on its own disk: `source`, a path as the node sees it, is copied to
    `target`. `sparse` keeps holes as holes; `size_bytes` is what it takes on the node."""

    name: str
    source: str
    target: str
    sparse: bool = False
    size_bytes: int | None = None


@frozen(kw_only=True)
class HostScript:
    """A script that a recipe wants run on a node: only ever when the user allowed it by name."""

    name: str
    path: str
    reason: str


@frozen(kw_only=True)
class ImageBuild:
    """How a recipe's image is built: a `context` folder beside the recipe, its `dockerfile`, and `patches` that are
    applied to a copy of the folder, in order, before."""

    context: str
    dockerfile: str = "Dockerfile"
    patches: tuple[str, ...] = ()


@frozen(kw_only=True)
class Recipe:
    """Model, engine, options and environment: what a TOML file in `recipes/` says.

    `options` are raw here; the lane holds them typed. `env` reaches every rank's process. `patience_s`
    is how long the boot may take, instead of the engine's own deadline. `mounts` are paths of the nodes
    that the containers see; with `build`, `image` is the name of what is built; `staging` and `scripts` come
    before the launch. `origin` is the file it was read from.
    """

    name: str
    engine: str
    model: Model
    description: str = ""
    source: str = ""
    options: Mapping[str, Any] = field(factory=_empty)
    env: Mapping[str, str] = field(factory=_empty)
    nodes: int = 1
    patience_s: float | None = None
    image: str | None = None
    build: ImageBuild | None = None
    mounts: tuple[Mount, ...] = ()
    staging: tuple[Copy, ...] = ()
    scripts: tuple[HostScript, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    origin: str = ""


@frozen(kw_only=True)
class Lane:
    """Engine x recipe x cluster: the thing that is run and compared.

    `options` is an instance of the class that the engine's `lanes_options` returned. A lane without
    a recipe stands for the engine alone (`caps` asks what it could do at all).
    """

    name: str
    engine: str
    recipe: Recipe | None = None
    options: Any = None
    cluster: str = "local"


@frozen(kw_only=True)
class EngineInfo:
    """What an engine plugin says of itself.

    Its name is that of its entry point. `version` is the engine's own, where the plugin can tell it
    cheaply. `recipes` is the importable package that holds its shipped recipes as `*.toml`.
    `default_recipes` maps a number of nodes to the recipes that `lanes run --engine X` may take
    when no recipe is named: exactly one is taken, several are listed for the person to choose.
    """

    version: str | None = None
    summary: str = ""
    homepage: str = ""
    recipes: str | None = None
    default_recipes: Mapping[int, tuple[str, ...]] = field(factory=_empty)


# -- Staging ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Files:
    """A file that a lane needs, at a path that the lane gets back as `staged.paths[name]`.

    With one part that already lies where it is needed (`in_place`), nothing is copied. Several parts
    are joined in order. `target` is the file name in the staging folder; `sha256` is checked before
    the final name appears.
    """

    name: str
    parts: tuple[str, ...]
    target: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    in_place: bool = False


@frozen(kw_only=True)
class Image:
    """A container image that each node must hold. `digest` is the repository digest, where known."""

    name: str
    reference: str
    digest: str | None = None
    platform: str | None = None
    size_bytes: int | None = None


@frozen(kw_only=True)
class Build:
    """An image that is built from a context folder, with patches applied in order."""

    name: str
    tag: str
    context: str
    dockerfile: str = "Dockerfile"
    patches: tuple[str, ...] = ()
    size_bytes: int | None = None


StageItem = Files | Image | Build | Copy | HostScript


@frozen(kw_only=True)
class Staged:
    """What staging produced: item name -> path or image reference, as the processes see it."""

    paths: Mapping[str, str] = field(factory=_empty)


# -- Launching ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class Seat:
    """Where one rank will run: its node, the address others reach it at, its network interface, the index
    of its GID and its RDMA devices (`rocep1s0f0`, with all twins of a port), where these are known."""

    rank: int
    node: Node
    address: str = "127.0.0.1"
    interface: str | None = None
    gid_index: int | None = None
    hcas: tuple[str, ...] = ()


@frozen(kw_only=True)
class Placement:
    """Where the ranks run, as the executor found it; seat 0 is the head.

    `http_port` and `rendezvous_port` are free ports on the head. In a dry run they are symbolic,
    which is why they are strings: they go into argv unchanged.
    """

    seats: tuple[Seat, ...]
    http_port: str
    rendezvous_port: str
    http_host: str = "127.0.0.1"

    @property
    def head(self) -> Seat:
        return self.seats[0]


@frozen(kw_only=True)
class Container:
    """What a process needs around it when it runs in a container.

    `gpus` is a number, or "all"; the executor turns it into devices. Limits are asked for; a
    cluster's file may override those that its hosts refuse. `memlock_bytes=-1` is unlimited; `ulimits`
    are further ones by Docker's names.
    """

    image: str
    mounts: tuple[Mount, ...] = ()
    gpus: int | Literal["all"] = 0
    devices: tuple[str, ...] = ()
    network: str = "host"
    ipc: str | None = None
    cap_add: tuple[str, ...] = ()
    shm_bytes: int | None = None
    memory_bytes: int | None = None
    memlock_bytes: int | None = None
    nofile: int | None = None
    cpus: float | None = None
    ulimits: Mapping[str, int] = field(factory=_empty)
    labels: Mapping[str, str] = field(factory=_empty)


@frozen(kw_only=True)
class Process:
    """One rank's process: an argv list (never a shell string) and its environment.

    `env` is added to the executor's own base environment. `container` is None for a plain process.
    """

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(factory=_empty)
    cwd: str | None = None
    container: Container | None = None


@frozen(kw_only=True)
class Dialect:
    """How an OpenAI-compatible server differs from the others; data only, so that the benchmark
    knows no engine.

    `api_key_env` names the environment variable that holds the key (the key itself never appears).
    `tokenize_path` with `tokenize_field` (the request's key for the text) answers `{"tokens": [...]}`
    or `{"count": n}`. `extra` is merged into every request, `fixed_length` only where the output's
    length is to be fixed; fields in `forbidden` are never sent. `metrics` maps our names
    to those of the server's metrics: the gauges `running` and `queued` (requests), `kv_use` (a share) and
    `acceptance` (tokens a verify step), the counters `generated` (tokens), `accepted` (drafted tokens
    that were) and `drafts` (verify steps).
    """

    name: str = "openai"
    api_key_env: str | None = None
    tokenize_path: str | None = None
    tokenize_field: str = "content"
    metrics_path: str | None = None
    metrics: Mapping[str, str] = field(factory=_empty)
    flush_path: str | None = None
    extra: Mapping[str, Any] = field(factory=_empty)
    fixed_length: Mapping[str, Any] = field(factory=_empty)
    forbidden: frozenset[str] = frozenset()


@frozen(kw_only=True)
class Endpoint:
    """All that the benchmark sees of a lane: `url` up to and without `/v1`, and the model's name."""

    url: str
    model: str
    dialect: Dialect = field(factory=Dialect)


@frozen(kw_only=True)
class Launch:
    """The processes of a lane and where it will answer.

    `start_order` is the order of ranks (default: as listed). `endpoint` is None for an engine that
    has no server. Raises ValueError where `start_order` does not name each rank once.
    """

    processes: tuple[Process, ...]
    endpoint: Endpoint | None = None
    start_order: tuple[int, ...] = field(default=())

    @start_order.validator
    def _each_rank_once(self, _: Any, order: tuple[int, ...]) -> None:
        ranks = sorted(process.rank for process in self.processes)
        if len(set(ranks)) < len(ranks) or (order and sorted(order) != ranks):
            raise ValueError(f"start_order {tuple(order)} should name each of the ranks {tuple(ranks)} once")

    @property
    def in_order(self) -> tuple[Process, ...]:
        """The processes as they are to be started."""
        by_rank = {process.rank: process for process in self.processes}
        return tuple(by_rank[rank] for rank in self.start_order or by_rank)


# -- Health -------------------------------------------------------------------------------------


@frozen(kw_only=True)
class HttpRung:
    """Ready when `GET path` answers 200. `loading` lists the statuses that mean "not yet"; a refused
    connection means "not yet" as long as the process lives. Any other status is a failure."""

    name: str
    path: str = "/health"
    loading: frozenset[int] = frozenset({503})


@frozen(kw_only=True)
class LogRung:
    """Ready when a line of the rank's log matches the regular expression `pattern`."""

    name: str
    pattern: str
    rank: int = 0


@frozen(kw_only=True)
class ExecRung:
    """Ready when this argv exits 0 beside the rank's process."""

    name: str
    argv: tuple[str, ...]
    rank: int = 0


@frozen(kw_only=True)
class CanaryRung:
    """Ready when a short streamed request brings at least one token."""

    name: str = "answers"
    max_tokens: int = 8


Rung = HttpRung | LogRung | ExecRung | CanaryRung


@frozen(kw_only=True)
class Phase:
    """A log line that tells how far a boot has come; `pattern` may have a group `fraction` or
    `percent`."""

    name: str
    pattern: str
    rank: int = 0


@frozen(kw_only=True)
class Ladder:
    """What ready looks like: rungs climbed in order, within `deadline_s` in all.

    `quiet_s` bounds how long the boot may go without anything new in its logs.
    """

    rungs: tuple[Rung, ...]
    deadline_s: float = 600.0
    quiet_s: float | None = None
    phases: tuple[Phase, ...] = ()


# -- Rehearsals -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class Trial:
    """A short program that is run where a rank would run, in its container and with its environment: `argv` instead
    of the rank's, `env` beside its own.

    It exits with 0 when what it tries works, and with 69 (EX_UNAVAILABLE) when that could not be tried; what it prints last
    says why not. It is ended after `deadline_s`.
    """

    argv: tuple[str, ...]
    rank: int = 0
    env: Mapping[str, str] = field(factory=_empty)
    deadline_s: float = 300.0


@frozen(kw_only=True)
class Rehearsal:
    """How an engine is rehearsed: what can be tried of a lane in minutes. A string instead says why the engine has
    no such thing, as a clause.

    `flags` have the engine's own parser read the command line of each rank, and nothing more. `kernels` imports the engine's
    kernels and runs one on the GPU; it is run on each node, whatever its rank says. `dummy` is the lane with
    weights that are made up instead of read, small where the engine lets it. `spared` are names of staged items that
    the dummy can do without.
    """

    flags: tuple[Trial, ...] | str
    kernels: Trial | str
    dummy: Lane | str
    spared: tuple[str, ...] = ()


# -- The end ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class StopPlan:
    """How to stop a lane: ranks in order, one after the other (those that it does not name follow, all at once),
    the signal, and how long each may take before it is killed."""

    order: tuple[int, ...] = (0,)
    signal: str = "SIGTERM"
    patience_s: float = 10.0


@frozen(kw_only=True)
class Exit:
    """How a process ended. `code` is None when a signal ended it or when nobody could see it end."""

    code: int | None = None
    signal: str | None = None
    oom_killed: bool = False


@frozen(kw_only=True)
class Postmortem:
    """What is known of a lane that failed: the phase, each rank's last log lines and exit, and what
    HTTP said (`http` is one sentence or None)."""

    phase: str
    logs: Mapping[int, tuple[str, ...]] = field(factory=_empty)
    exits: Mapping[int, Exit] = field(factory=_empty)
    http: str | None = None


@frozen(kw_only=True)
class Cause:
    """Why a lane failed.

    `name` is short and stable. `meaning` and `advice` are a sentence each. `transient` says that the
    same launch is worth one retry. `lines` are the log lines that told; `rank` is the rank they are of.
    """

    name: str
    meaning: str
    advice: str
    transient: bool = False
    rank: int | None = None
    lines: tuple[str, ...] = ()
