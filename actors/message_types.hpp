#pragma once

#include "runtime/messages.hpp"

#include <caf/all.hpp>

namespace millrace {

// Commands without content. (CAF 0.17 atoms: ten characters at most.)
using tick_atom = caf::atom_constant<caf::atom("tick")>;      ///< to oneself: time has passed
using start_atom = caf::atom_constant<caf::atom("start")>;    ///< begin to train
using decode_atom = caf::atom_constant<caf::atom("decode")>;  ///< to oneself: one decode step
// An actor joined the stream: with its handle, and what is known of it.
using generator_joined_atom = caf::atom_constant<caf::atom("gen_joined")>;
using reward_joined_atom = caf::atom_constant<caf::atom("rew_joined")>;
using replay_joined_atom = caf::atom_constant<caf::atom("rep_joined")>;
using receiver_joined_atom = caf::atom_constant<caf::atom("rcv_joined")>;
using node_joined_atom = caf::atom_constant<caf::atom("node_joins")>; ///< a node's introspector
using save_atom = caf::atom_constant<caf::atom("save")>;      ///< what a checkpoint needs of you
using totals_atom = caf::atom_constant<caf::atom("totals")>;  ///< the ledger's sums
using flight_atom = caf::atom_constant<caf::atom("in_flight")>; ///< → in_flight_reply
/// (old-logit actor) to controller and trainer: it is there; (train_batch) from the trainer to it →
/// old_logit_supply.
using annotate_atom = caf::atom_constant<caf::atom("annotate")>;
/// A plugin's actor to the controller (with its name) and to the recorder: it wants groups and steps.
using filter_atom = caf::atom_constant<caf::atom("filter")>;
using drain_atom = caf::atom_constant<caf::atom("drain")>;    ///< finish what runs, start no more
using scale_atom = caf::atom_constant<caf::atom("scale")>;    ///< run so many actors of a kind
using finished_atom = caf::atom_constant<caf::atom("finished")>; ///< the run came to its end
using failed_atom = caf::atom_constant<caf::atom("failed")>;  ///< the run cannot go on
/// To any actor → actor_snapshot; to the introspector → those of its process; to the supervisor, with
/// a name → that child's handle.
using inspect_atom = caf::atom_constant<caf::atom("inspect")>;
using all_atom = caf::atom_constant<caf::atom("all")>; ///< with inspect_atom: of all nodes

/// Registers every message with CAF: both ends of a link must know the same types.
void add_message_types(caf::actor_system_config& config);

} // namespace millrace
