"""Search: which trials come next. A search is pure: the stored losses decide, so a run resumes by asking anew."""

from hpxfer.search.coordinate import CoordinateStep
from hpxfer.search.kinds import SEARCHES, SearchKind, Stored, kind_of, make_search, no_trials, register_search
from hpxfer.search.points import ArmBest, ArmPoints, arm_points, best_of_arms, is_base_alone, tuned, tunes_points
from hpxfer.search.protocol import Arm, Outcome, Progress, Search, arms_of
from hpxfer.search.refine import RefinedPoint
from hpxfer.search.rounds import RoundSearch
from hpxfer.search.staged_grid import HeatmapCell
from hpxfer.search.stored import cells_of, is_in_box, is_of, searched_cells, stored_trials
from hpxfer.search.verdict_lines import MOST_DOUBT, DoubtLook, doubt_looks
from hpxfer.search.verdict_rules import judged_by, rules_of
