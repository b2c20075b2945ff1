"""A plan's changes as one request of a repository: drafted from what is there, sent with a person's yes.

A manifest that one file below the folder holds is changed there, by the fewest characters; what no file holds, or
several do, becomes a Kustomize component beside them, as `apply --emit git` writes it. The branch is the plan's own
and only ever grows: a second call reads the branch, commits what is missing, and changes nothing where nothing is. A
file that says neither what the cluster had nor what the plan wants is a conflict, and then nothing is sent.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from enforcer.emit.kustomize import COMPONENT_FILE, grown_files
from enforcer.emit.manifest_edit import Conflict, Document, desired, documents, edited, holds
from enforcer.emit.object_patch import ObjectPatch
from enforcer.forge.forge import Commit, FileChange, Forge, ForgeRequest, RequestState, StoredFile
from enforcer.forge.forge_github import GiteaForge, GithubForge
from enforcer.forge.forge_gitlab import GitlabForge
from enforcer.forge.rest import FILE_BYTES_MAX, is_plain_path
from fleet.errors import Misconfigured, Refused
from fleet.settings.forge import ForgeKind, ForgeSettings

MANIFESTS_MAX = 1000
"""Most YAML files below the folder: each is read by a call of its own."""
_CONFLICTS_SHOWN = 5
_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where an object's change goes.

    Attributes:
        file: path within the repository.
        is_edited: the file holds the object; otherwise it is a patch of the component.
        why: why it is a patch; empty where it is not.
    """

    object: str
    file: str
    is_edited: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What would be sent.

    Attributes:
        parent: the commit that was read: the end of our branch, of the base branch where there is none of ours.
        files: what changes there; empty where it is all there already.
        request: the newest of this branch; None before the first.
        component: folder that an overlay must name in `components`; None where every object has a file.
    """

    branch: str
    base_branch: str
    parent: str
    is_new: bool
    files: tuple[FileChange, ...]
    placed: tuple[Placed, ...]
    request: ForgeRequest | None
    component: str | None

    @property
    def text(self) -> str:
        """Unified diff of all files."""
        return "\n".join(
            line
            for one in self.files
            for line in difflib.unified_diff(
                one.before.splitlines(), one.text.splitlines(),
                f"a/{one.path}" if one.was else "/dev/null", f"b/{one.path}", lineterm="",
            )
        )  # fmt: skip


def open_forge(settings: ForgeSettings) -> Forge:
    """The forge of the settings.

    Raises:
        Misconfigured: there is none, or its address can't be used.
    """
    adapters: dict[ForgeKind, Callable[[ForgeSettings], Forge]] = {
        ForgeKind.GITHUB: GithubForge,
        ForgeKind.GITLAB: GitlabForge,
        ForgeKind.GITEA: GiteaForge,
    }
    return adapters[settings.kind or ForgeKind.GITHUB](settings)


def branch_of(plan_id: str) -> str:
    """The branch of a plan."""
    return f"gputide/{plan_id}"


def draft(
    forge: Forge, settings: ForgeSettings, plan_id: str, patches: Sequence[ObjectPatch], made: Sequence[str] = ()
) -> Draft:
    """What a plan's request would hold; changes nothing.

    Args:
        patches: of objects that people keep as files, in order.
        made: objects of our own that must be there first, as YAML.

    Raises:
        Refused: a conflict; or people closed the request; or it was merged and its branch is still there.
        Misconfigured: no such base branch, or more than `MANIFESTS_MAX` files.
    """
    branch, base = branch_of(plan_id), settings.base_branch
    if branch == base:
        raise Refused(f"cannot use forge.base_branch={base}: it is the branch of this plan's own request")
    request, own, parent = forge.newest(branch), forge.head(branch), forge.head(base)
    if parent is None:
        raise Misconfigured(f"cannot use forge.base_branch={base}: {settings.repository} has no such branch")
    if request is not None and request.state is RequestState.CLOSED:
        raise Refused(f"cannot send plan {plan_id}: {request.url} was closed without being merged; reopen it there")
    is_merged = request is not None and request.state is RequestState.MERGED
    start = parent if own is None or is_merged else own
    names = {patch.name.encode() for patch in patches}
    writing = _Writing(forge=forge, settings=settings, plan_id=plan_id, stored=forge.files(start), names=names)
    for patch in _of_one_object(patches):
        writing.place(patch)
    if writing.conflicts:
        more = len(writing.conflicts) - _CONFLICTS_SHOWN
        shown = "; ".join(writing.conflicts[:_CONFLICTS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise Refused(f"cannot send plan {plan_id}: the repository differs from the cluster: {shown}")
    component = writing.write_component(made, is_merged=start == parent)
    files = writing.changes()
    if files and is_merged and own is not None:
        raise Refused(f"cannot send plan {plan_id}: {request and request.url} was merged; delete its branch {branch}")
    return Draft(
        branch=branch, base_branch=base, parent=start, is_new=own is None, files=files, placed=tuple(writing.placed),
        request=None if is_merged and files else request, component=component,
    )  # fmt: skip


def send(forge: Forge, drafted: Draft, *, title: str, body: str) -> tuple[ForgeRequest, bool]:
    """Commit what is missing and open or mend the request.

    Returns:
        The request, and whether anything was changed.

    Raises:
        Refused: the branch or a file is not as it was read; or nothing is left to change.
    """
    request = drafted.request
    if drafted.files:
        forge.commit(
            Commit(
                branch=drafted.branch, parent=drafted.parent, is_new=drafted.is_new, message=f"{title}\n",
                files=drafted.files,
            )
        )  # fmt: skip
    if request is None:
        if not drafted.files and drafted.is_new:
            raise Refused(f"cannot open a request: {drafted.base_branch} says all that the plan wants already")
        return forge.put(drafted.branch, title, body, number=None), True
    if request.state is RequestState.MERGED:
        return request, False
    if (request.title, _plain(request.body)) == (title, _plain(body)):
        return request, bool(drafted.files)
    return forge.put(drafted.branch, title, body, number=request.number), True


def _plain(text: str) -> str:
    """A text without what forges make of its line ends."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _of_one_object(patches: Sequence[ObjectPatch]) -> list[ObjectPatch]:
    """One patch per object where it is known as a whole: a branch holds the end of them, not the steps."""
    found: list[ObjectPatch] = []
    for patch in patches:
        place = next((at for at, one in enumerate(found) if one.key == patch.key and one.is_whole), None)
        if place is None or not patch.is_whole:
            found.append(patch)
        else:
            found[place] = replace(found[place], after=patch.after)
    return found


@dataclass(slots=True, kw_only=True)
class _Writing:
    """Files while a draft is made. mutable: texts, places and conflicts grow with each object.

    Attributes:
        names: of all objects; a file without any of them is not parsed, which takes 6 s a MB.
    """

    forge: Forge
    settings: ForgeSettings
    plan_id: str
    stored: Sequence[StoredFile]
    names: Collection[bytes]
    placed: list[Placed] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    left: list[ObjectPatch] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    parsed: dict[str, list[Document]] | None = None

    @property
    def folder(self) -> str:
        """Of the component."""
        return "/".join(part for part in (self.settings.path, "gputide", self.plan_id) if part)

    def place(self, patch: ObjectPatch) -> None:
        """Change the file that holds an object, or leave it to the component."""
        name = f"{patch.kind.kind} {patch.namespace}/{patch.name}"
        found = [
            (path, number)
            for path, documents_ in self._manifests().items()
            for number, (_, value) in enumerate(documents_)
            if holds(value, patch)
        ]
        why = "no file holds it" if not found else "" if len(found) == 1 else f"{len(found)} places hold it"
        if not why:
            (path, number), *_ = found
            documents_ = self._manifests()[path]
            wanted, against = desired(documents_[number][1], patch)
            missing = [one for one in against if one.found is None]
            if against and not missing:
                self.conflicts += [_said(path, name, one) for one in against]
                return
            text = None if missing else edited(self.texts[path], number, wanted)
            why = f"{path} does not hold {missing[0].place}" if missing else f"{path} can't be edited by its lines"
            if text is not None:
                self.texts[path] = text
                self._manifests()[path] = documents(text.encode())
                self.placed.append(Placed(object=name, file=path, is_edited=True))
                return
        self.left.append(patch)
        self.placed.append(Placed(object=name, file=f"{self.folder}/{COMPONENT_FILE}", is_edited=False, why=why))

    def write_component(self, made: Sequence[str], *, is_merged: bool) -> str | None:
        """Write what no file holds beside what the folder holds; returns the folder, None where nothing is left.

        Args:
            is_merged: what the folder holds is in the base branch.
        """
        if not self.left and not made:
            return None
        own = f"{self.folder}/"
        held = [one for one in self.stored if one.path.startswith(own)]
        self.read |= {one.path: self.forge.read(one).decode(errors="replace") for one in held}
        texts = {one.path.removeprefix(own): self.read[one.path] for one in held}
        for name, text in grown_files(texts, self.left, made, is_merged=is_merged).items():
            path = f"{self.folder}/{name}"
            if not is_plain_path(path):
                raise Refused(f"cannot write {path!r}: it would leave its folder")
            self.texts[path] = text
        return self.folder

    def changes(self) -> tuple[FileChange, ...]:
        """The files that are not as they were read, by path."""
        by_path = {one.path: one for one in self.stored}
        return tuple(
            FileChange(path=path, was=by_path.get(path), before=self.read.get(path, ""), text=text)
            for path, text in sorted(self.texts.items())
            if path not in self.read or text != self.read[path]
        )

    def _manifests(self) -> dict[str, list[Document]]:
        """Documents of every file that could hold an object, by path; read once."""
        if self.parsed is not None:
            return self.parsed
        own = f"{self.folder}/"
        files = [one for one in self.stored if one.path.endswith(_ENDINGS) and not one.path.startswith(own)]
        if len(files) > MANIFESTS_MAX:
            raise Misconfigured(
                f"cannot read {len(files)} YAML files of {self.settings.repository}: more than {MANIFESTS_MAX}; set "
                "forge.path to the folder of this cluster"
            )
        self.parsed = {}
        for file in files:
            content = self.forge.read(file)
            is_read = len(content) <= FILE_BYTES_MAX and any(name in content for name in self.names)
            found = documents(content) if is_read else []
            if found:
                self.parsed[file.path] = found
                self.texts[file.path] = self.read[file.path] = content.decode()
        return self.parsed


def _said(path: str, name: str, conflict: Conflict) -> str:
    return f"{path}, {name}: {conflict.place} is {conflict.found}, in the cluster {conflict.expected}"
