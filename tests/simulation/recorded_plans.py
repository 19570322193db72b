"""A run that detects each mutation: the first one that the search of mutation.py finds.

`python -m tests.simulation.recorded_plans` searches again, and prints the lines of the table.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

PLANS: Final = {
    "no_group_metadata": "fork:exactly_once:1:frozen@37",
    "no_rewind_after_an_abort": "fork:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "abort_on_unknown": "generator:exactly_once:6:late@80",
    "no_new_producer_after_a_timed_out_request": "alts:exactly_once:39:doubled@52",
    "positions_are_those_fetched": "sink:exactly_once:2~:frozen@35:deployed@13:slow@14:dies_after@7",
    "dead_letters_outside_of_the_transaction": "join:exactly_once:3:unanswered@26:stalled@33:expired@30",
    "failed_deliveries_ignored": "fork:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "positions_after_the_transaction": "fork:exactly_once:22:frozen@20:away@8:frozen@20:stopped@11",
    "positions_before_the_transaction": "fork:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "outputs_in_another_order": "fork:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "inputs_that_are_not_committed": "sink:exactly_once:2~:frozen@35:deployed@13:slow@14:dies_after@7",
    "no_fencing_before_recovery": "join:exactly_once:3:unanswered@26:stalled@33:expired@30",
    "commit_of_partitions_that_were_taken_away": "sink:exactly_once:79:grown@19:lost@21",
    "membership_asked_for_by_a_plain_commit": "alts:exactly_once:4:slow@152:doubled@27",
    "records_of_before_a_rewind_kept": "join:exactly_once:3:unanswered@26:stalled@33:expired@30",
    "delivery_hash_of_the_attempt": "fork:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "choices_not_journaled": "alts:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "choices_journaled_without_asking_the_group": "alts:exactly_once:143:frozen@61:dies@65",
    "steps_counted_before_their_commit": "fork:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "commits_without_an_answer_counted_as_rolled_back": "fork:exactly_once:1:unanswered@43",
    "commits_without_an_answer_counted_as_committed": "join:exactly_once:3:lost@34",
    "positions_before_the_acknowledgements": "fork:at_least_once:1:away@10:replaced@28:away@40:dies_late@15",
    "positions_after_the_functions": "fork:at_most_once:1:away@10:replaced@28:away@40:dies_late@15",
    "no_new_member_after_a_commit_that_may_be_late": "fork:at_most_once:1:doubled@21",
    "failed_commit_drops_a_record_at_least_once": "fork:at_least_once:1:away@10:replaced@28:away@40:dies_late@15",
    "failed_commit_drops_a_record_at_most_once": "alts:at_most_once:53:unanswered@18:grown@40:dies_after@30",
    "step_that_stops_is_passed_while_the_queue_is_full": "map:at_least_once:7:stalled@21:stalled@36",
    "at_most_once_without_an_idempotent_producer": "join:at_most_once:3:unanswered@26:stalled@33:stalled@22",
    "outputs_dropped_with_their_partitions": "join:at_most_once:3:joined@26:joined@33:joined@22",
    "outputs_written_after_their_partitions_are_lost": ("alts:at_most_once:46:frozen@39:frozen@31:frozen@22:frozen@18"),
    "group_that_began_before_starts_over": "fork:exactly_once:1:expired@10:expired@28:expired@40:expired@15",
    "latest_skips_what_is_in_a_new_partition": "fork:exactly_once:22:grown@20:grown@8:grown@20:grown@11",
    "choices_of_a_missing_input_followed": "alts:exactly_once:3:deployed@26:lost@28:lost@33",
    "choices_of_a_topic_that_was_created_again_followed": "alts:exactly_once:2~:lost@17:lost@32:remade@19:remade@4",
    "refused_output_not_searched_for": "fork:exactly_once:1:dies@10:dies@28:dies@40:dies@15",
    "growth_of_one_input_not_noticed": "join:exactly_once:1:grown@10:grown@28:grown@40:grown@15",
    "member_that_wakes_up_takes_its_membership_back": "fork:exactly_once:15:replaced@32:replaced@15:replaced@19",
    "nothing_written_after_the_second_assignment": "join:at_most_once:10:dies@10:grown@33:joined@24:replaced@1",
    "any_number_of_copies_at_least_once": "fork:at_least_once:1:away@10:replaced@28:away@40:dies_late@15",
    "any_number_of_effects_exactly_once": "sink:exactly_once:1:away@10:replaced@28:away@40:dies_late@15",
    "commit_past_the_waiting_step": "fork:exactly_once:1~:away@10:replaced@28:away@40:dies_late@15",
    "commit_past_the_waiting_step_at_least_once": "fork:at_least_once:1~:away@10:replaced@28:away@40:dies_late@15",
    "steps_behind_the_waiting_one_are_run": "fork:exactly_once:1~:away@10:replaced@28:away@40:dies_late@15",
    "markers_behind_the_waiting_step_are_passed": "sink:exactly_once:2~:frozen@35:deployed@13:slow@14:dies_after@7",
    "at_most_once_gives_nothing_back": "sink:at_most_once:2~:frozen@35:deployed@13:slow@14:dies_after@7",
    "at_most_once_gives_back_though_a_commit_may_come_late": "generator:at_most_once:6~:doubled@95",
    "each_attempt_has_its_own_hash": "fork:exactly_once:1~:away@10:replaced@28:away@40:dies_late@15",
    "dead_letter_at_the_first_attempt": "fork:exactly_once:1~:away@10:replaced@28:away@40:dies_late@15",
    "results_are_written_in_the_order_of_their_ends": (
        "fork:exactly_once:1+none:away@10:replaced@28:away@40:dies_late@15"
    ),
    "results_are_written_in_the_order_of_their_ends_at_least_once": (
        "map:at_least_once:6+key:deployed@22:stalled@29:grown@6:joined@39"
    ),
    "calls_of_a_key_overlap": "fork:exactly_once:1+key:away@10:replaced@28:away@40:dies_late@15",
    "chain_goes_on_past_a_call_that_failed": "fork:exactly_once:1~+partition:away@10:replaced@28:away@40:dies_late@15",
    "steps_behind_a_failed_one_are_opened": "fork:exactly_once:8~+key",
    "runner_that_finishes_never_begins_again": "fork:exactly_once:8~+partition",
    "steps_that_are_not_done_are_dropped": "fork:exactly_once:1+partition:away@10:replaced@28:away@40:dies_late@15",
    "at_most_once_forgets_the_rest_of_an_intake": "fork:at_most_once:169+partition:doubled@13",
    "rest_comes_after_what_is_ready": "fork:exactly_once:1~+none:away@10:replaced@28:away@40:dies_late@15",
    "refused_output_is_blamed_on_the_first_step_of_the_intake": "fork:exactly_once:323~+none:unanswered@10",
    "offsets_before_the_rows": "sink:exactly_once:1&hash:away@10:replaced@28:away@40:dies_late@15",
    "offsets_before_the_rows_at_least_once": "sink:at_least_once:1&hash:away@10:replaced@28:away@40:dies_late@15",
    "one_hash_for_all_rows_of_a_step": "generator:exactly_once:1&hash:away@10:replaced@28:away@40:dies_late@15",
    "rows_with_a_hash_of_the_attempt": "sink:exactly_once:1&hash:away@10:replaced@28:away@40:dies_late@15",
    "rows_dropped_while_the_target_is_away": "join:exactly_once:116&hash:late@27:deployed@13:expired@11:slow@40",
    "offsets_not_compared": "join:exactly_once:44&offsets:expired@2:unanswered@28:replaced@39:remade@35",
    "offsets_read_from_the_group_alone": "generator:exactly_once:17&offsets:stopped@25:late@8:dies_late@36:joined@1",
    "offsets_of_a_topic_by_its_name": "alts:exactly_once:3&offsets:remade@26:remade@33:remade@22",
    "dead_letters_written_again_with_each_search": "alts:exactly_once:21&offsets:replaced@21:unanswered@25",
    "no_recovery": "alts:exactly_once:3#2^:unanswered@26:stalled@33:grown@22",
    "no_pin": "alts:exactly_once:1#2:away@10:replaced@28:away@40:dies_late@15",
    "intake_kept_that_another_has_delivered": "alts:exactly_once:775~#2:doubled@37:lost@16:frozen@8",
    "attempt_after_the_commit": "join:exactly_once:24#2:unanswered@17:stalled@35:unanswered@19:stalled@11",
    "looks_for_no_output": "alts:exactly_once:46#2:dies@39:replaced@31:stalled@22:dies_after@18",
    "records_choices_only_with_a_new_snapshot": "alts:exactly_once:59~#2:doubled@39:late@5:dies_after@24:dies_after@3",
    "no_choice_before_the_function": "alts:exactly_once:1#2:away@10:replaced@28:away@40:dies_late@15",
    "no_record_beside_outputs": "join:exactly_once:2~#2^:frozen@35:expired@13:slow@14:dies_after@7",
    "offsets_decide_between_clusters": "batch:exactly_once:10#2^:dies@10:grown@33:joined@24:replaced@1",
    "goes_on_at_the_committed_offsets": "batch:exactly_once:10#2^:dies@10:grown@33:joined@24:replaced@1",
}

if __name__ == "__main__":
    from tests.simulation.mutation import find
    from tests.simulation.test_mutations import MUTATIONS

    logging.disable(logging.CRITICAL)
    for name, mutation in MUTATIONS.items():
        seen, _ = find(mutation)
        sys.stdout.write(f'    "{name}": "{seen and seen.plan}",\n')
