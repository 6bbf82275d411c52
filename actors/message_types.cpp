#include "actors/message_types.hpp"

#include "actors/evaluation.hpp"
#include "runtime/introspection.hpp"

namespace millrace {

void add_message_types(caf::actor_system_config& config) {
  config.add_message_type<version>("millrace::version")
    .add_message_type<rollout_id>("millrace::rollout_id")
    .add_message_type<assign_tasks>("millrace::assign_tasks")
    .add_message_type<cancel_rollouts>("millrace::cancel_rollouts")
    .add_message_type<rollouts_finished>("millrace::rollouts_finished")
    .add_message_type<rollouts_progress>("millrace::rollouts_progress")
    .add_message_type<rollouts_returned>("millrace::rollouts_returned")
    .add_message_type<score_batch>("millrace::score_batch")
    .add_message_type<score_results>("millrace::score_results")
    .add_message_type<buffer_groups>("millrace::buffer_groups")
    .add_message_type<filter_verdict>("millrace::filter_verdict")
    .add_message_type<claim_request>("millrace::claim_request")
    .add_message_type<claim_reply>("millrace::claim_reply")
    .add_message_type<in_flight_reply>("millrace::in_flight_reply")
    .add_message_type<batch_request>("millrace::batch_request")
    .add_message_type<in_flight_query>("millrace::in_flight_query")
    .add_message_type<old_logit_question>("millrace::old_logit_question")
    .add_message_type<old_logit_supply>("millrace::old_logit_supply")
    .add_message_type<train_batch>("millrace::train_batch")
    .add_message_type<train_result>("millrace::train_result")
    .add_message_type<step_report>("millrace::step_report")
    .add_message_type<weights_published>("millrace::weights_published")
    .add_message_type<lease_request>("millrace::lease_request")
    .add_message_type<lease_reply>("millrace::lease_reply")
    .add_message_type<lease_update>("millrace::lease_update")
    .add_message_type<weights_ready>("millrace::weights_ready")
    .add_message_type<generator_report>("millrace::generator_report")
    .add_message_type<evaluation_report>("millrace::evaluation_report")
    .add_message_type<actor_snapshot>("millrace::actor_snapshot")
    .add_message_type<std::vector<actor_snapshot>>("millrace::actor_snapshots");
}

} // namespace millrace
