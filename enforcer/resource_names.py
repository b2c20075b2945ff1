"""The names by which pods ask for a share of a card, for the backends whose pods ask by resources and annotations.

Every installation may name its resources otherwise, so the words are data: read from the cluster's own configuration
where it has one. Used by those backends' dialects and renderers, by the admission step and by the fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass


def listed_words(text: str | None) -> tuple[str, ...]:
    """The words of an annotation that lists them between commas; none where there is no text."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The names of one installation; None where the backend has no such thing.

    Attributes:
        framebuffer_percent: resource, the same in percent of a card.
        use_card: annotation, only these cards by UUID.
        avoid_card: annotation, none of these cards.
        use_model: annotation, only these models.
        avoid_model: annotation, none of these models.
        node_policy: annotation, `binpack` or `spread` over nodes.
        card_policy: annotation, `binpack` or `spread` over a node's cards.
        framebuffer_factor: MiB that one unit of `framebuffer` stands for.
        count_by_model: where each card model has a count resource of its own: part of the model's name, resource. The
            first that fits counts; `count` stands for the others.
    """

    count: str
    framebuffer: str
    framebuffer_percent: str | None
    cores: str
    priority: str | None
    use_card: str | None
    avoid_card: str | None
    use_model: str | None
    avoid_model: str | None
    node_policy: str | None
    card_policy: str | None
    framebuffer_factor: int = 1
    count_by_model: tuple[tuple[str, str], ...] = ()

    @property
    def counts(self) -> tuple[str, ...]:
        """Every resource by which a container may ask for cards."""
        return tuple(dict.fromkeys((self.count, *(resource for _, resource in self.count_by_model))))

    def count_of_model(self, model: str) -> str:
        """The resource that counts cards of a model."""
        for word, resource in self.count_by_model:
            if word.lower() in model.lower():
                return resource
        return self.count

    @property
    def grant_resources(self) -> tuple[str, ...]:
        """Resources that make up a grant beside the count: framebuffer, cores and, where there is one, priority."""
        return tuple(name for name in (self.framebuffer, self.cores, self.priority) if name is not None)


def names_model(text: str, model: str) -> bool:
    """Whether one of the words of a choice of models is part of a model's name, as the schedulers compare them."""
    return any(word.lower() in model.lower() for word in listed_words(text))
