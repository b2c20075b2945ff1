"""The grid's own texts in Chinese: what it shows and what it tells a screen reader.

Keys are those of ag-grid's `localeText` (ag-grid-community 35.3, `getLocaleTextFunc`). Called by `pages.frame`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GRID_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "ariaChecked": "已选中",
        "ariaColumn": "列",
        "ariaColumnFiltered": "该列已筛选",
        "ariaColumnSelectAll": "切换全选各列",
        "ariaDeferSkeletonCellLoading": "单元格正在加载",
        "ariaFilterColumn": "按 CTRL ENTER 打开筛选",
        "ariaFilterFromValue": "筛选起始值",
        "ariaFilterInput": "筛选输入框",
        "ariaFilterMenuOpen": "打开筛选菜单",
        "ariaFilterToValue": "筛选结束值",
        "ariaFilterValue": "筛选值",
        "ariaFilteringOperator": "筛选运算符",
        "ariaHidden": "隐藏",
        "ariaIndeterminate": "不确定",
        "ariaInputEditor": "输入编辑器",
        "ariaLabelColumnFilter": "列筛选",
        "ariaLabelColumnMenu": "列菜单",
        "ariaLabelTooltip": "提示",
        "ariaMenuColumn": "按 ALT DOWN 打开列菜单",
        "ariaPageSizeSelectorLabel": "每页行数",
        "ariaRowDeselect": "按空格键取消选择该行",
        "ariaRowSelect": "按空格键选择该行",
        "ariaRowSelectAll": "按空格键切换全选",
        "ariaRowToggleSelection": "按空格键切换选择",
        "ariaRowSelectionDisabled": "该行不可选择",
        "ariaSkeletonCellLoading": "该行数据正在加载",
        "ariaSkeletonCellLoadingFailed": "该行加载失败",
        "ariaSortableColumn": "按 ENTER 排序",
        "ariaToggleCellValue": "按空格键切换单元格的值",
        "ariaUnchecked": "未选中",
        "ariaVisible": "可见",
        "blank": "为空",
        "contains": "包含",
        "endsWith": "结尾为",
        "equals": "等于",
        "filterOoo": "筛选…",
        "firstPage": "第一页",
        "greaterThan": "大于",
        "greaterThanOrEqual": "大于等于",
        "inRange": "介于",
        "inRangeEnd": "至",
        "inRangeStart": "从",
        "invalidNumber": "不是数字",
        "lastPage": "最后一页",
        "lessThan": "小于",
        "lessThanOrEqual": "小于等于",
        "loadingError": "加载失败",
        "loadingOoo": "加载中…",
        "more": "更多",
        "nextPage": "下一页",
        "noMatchingRows": "没有符合条件的行",
        "noRowsToShow": "没有可显示的行",
        "notBlank": "不为空",
        "notContains": "不包含",
        "notEqual": "不等于",
        "of": "/",
        "page": "页",
        "pageSizeSelectorLabel": "每页行数：",
        "previousPage": "上一页",
        "startsWith": "开头为",
        "to": "至",
    }
)
"""Chinese by key."""
