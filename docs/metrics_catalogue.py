"""Every family that the exporters may show, by who shows it: the catalogue of metrics.

Read by `metrics_page` and by tests. A source of figures keeps its families as a tuple of `CataloguedFamily` beside its
code and is named here.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.allocation.collector import HEALTH_FAMILIES
from exporter.allocation.families import FAMILIES as ALLOCATION_FAMILIES
from exporter.card_families import CARD_FAMILIES
from exporter.cross_checks.checks import CROSS_CHECK_FAMILIES
from exporter.exposition.readings import READING_FAMILIES
from exporter.exposition.rendering import OWN_FAMILIES
from exporter.families import CataloguedFamily
from exporter.node.families import FAMILIES as NODE_FAMILIES
from exporter.process_series import FAMILIES as PROCESS_FAMILIES
from exporter.regions.families import FAMILIES as REGION_FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueSection:
    """The families of one source.

    Attributes:
        title: heading.
        text: who shows them, and when.
        families: the families, in the order in which they are shown.
    """

    title: str
    text: str
    families: tuple[CataloguedFamily, ...]


CATALOGUE: tuple[CatalogueSection, ...] = (
    CatalogueSection(
        title="Measures, cards, nodes and grants",
        text="From every reader. These are what the receiver stores; a measure that a source lacks has no series.",
        families=READING_FAMILIES,
    ),
    CatalogueSection(
        title="Cards, beyond the stored measures",
        text="From the driver, by the node exporter. What a card or driver does not support has no series.",
        families=CARD_FAMILIES,
    ),
    CatalogueSection(
        title="HAMi's shared regions",
        text="From the regions of HAMi's and Volcano's library, by the node exporter.",
        families=REGION_FAMILIES,
    ),
    CatalogueSection(
        title="The node's sources",
        text="Whom the node exporter asks, how that fares, and what is odd about who was granted what.",
        families=NODE_FAMILIES,
    ),
    CatalogueSection(
        title="Processes",
        text="From the driver and the host's `/proc`, by the node exporter where `exporter.processes_max` is above 0.",
        families=PROCESS_FAMILIES,
    ),
    CatalogueSection(
        title="Cross-checks",
        text="From every reading. A check that could not be made on the last readings has no series.",
        families=CROSS_CHECK_FAMILIES,
    ),
    CatalogueSection(
        title="The scheduler layer",
        text="From the Kubernetes API, by the cluster exporter.",
        families=(*ALLOCATION_FAMILIES, *HEALTH_FAMILIES),
    ),
    CatalogueSection(title="The exporter itself", text="In every answer.", families=OWN_FAMILIES),
)
"""Every section, in the order of the page."""
