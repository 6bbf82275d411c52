// The one place where each option is declared: its name, range and meaning. Its default is the
// field's initialiser in settings.hpp.

#include "runtime/config/describe.hpp"

namespace millrace {
namespace {

constexpr double million = 1'000'000;

} // namespace

void describe(option_list& v, run_settings& s) {
  v("dir", s.dir, "Run directory. Empty: a fresh one, runs/NAME-DATE-TIME");
  v("steps", s.steps, in_range(0, 100 * million), "Training steps, each B rollouts");
  v("checkpoint_every", s.checkpoint_every, in_range(0, 100 * million),
    "Training steps between checkpoints; 0: one at the end only");
  v("keep_checkpoints", s.keep_checkpoints, in_range(1, 10000),
    "Checkpoints that are kept; older ones are deleted");
  v("keep_best", s.keep_best, in_range(0, 10000),
    "Older ones that are kept all the same: those with the highest mean reward of the batches since "
    "the checkpoint before");
  v("eval_every", s.eval_every, in_range(0, 100 * million),
    "Training steps between evaluations on held-out prompts; 0: before and after only");
  v("log_every", s.log_every, in_range(1, million), "Training steps per line on the screen");
}

void describe(option_list& v, architecture_settings& s) {
  v("layers", s.layers, in_range(1, 1024), "Transformer blocks");
  v("hidden", s.hidden, in_range(2, 65536), "Width of the residual stream");
  v("heads", s.heads, in_range(1, 1024), "Query heads; hidden/heads must be even");
  v("kv_heads", s.kv_heads, in_range(1, 1024), "Key and value heads; divides heads");
  v("intermediate", s.intermediate, in_range(1, 1 << 20), "Width of the SwiGLU layer");
  v("max_positions", s.max_positions, in_range(2, 1 << 24),
    "Tokens of prompt and answer together, at most");
  v("rope_theta", s.rope_theta, above(0), "Base of the rotary position embedding");
  v("norm_eps", s.norm_eps, above_up_to(0, 0.1), "Added to the variance in RMSNorm");
  v("tie_embeddings", s.tie_embeddings, "The output layer shares the embedding's weights");
}

void describe(option_list& v, model_settings& s) {
  v("path", s.path, "Model folder to start from (config.json, safetensors, tokenizer). Empty: a "
                    "model made from scratch by model.architecture");
  v.section("architecture", s.architecture, "Shape of a model made from scratch");
}

void describe(option_list& v, tokenizer_settings& s) {
  v("alphabet", s.alphabet, "Characters of the character tokenizer of a model made from scratch. "
                            "Empty: those that the prompts and demonstrations need");
}

void describe(option_list& v, arithmetic_settings& s) {
  v("max_operand", s.max_operand, in_range(1, 999), "Largest number in a task");
  v("operations", s.operations, "Operations used: characters among + - *");
  v("terms", s.terms, in_range(2, 4), "Numbers in a task; * binds more tightly than + and -");
  v("words", s.words, in_range(0, 1), "The share of numbers and operations written as words");
  v("negative", s.negative, "Whether results below 0 are asked for");
  v("worked", s.worked,
    "Demonstrations count their way to the result (7+3= is 8 9 10), so that answers have different "
    "lengths; for two terms up to 20");
  v("held_out_facts", s.held_out_facts,
    "Held-out tasks are not trained on in any other writing or order either, only as instances of "
    "the rule");
}

void describe(option_list& v, data_settings& s) {
  v("source", s.source, "Where prompts come from: \"arithmetic\" (made by the program), \"jsonl\" "
                        "(data.file) or a plugin's");
  v("file", s.file, "JSON-lines file of prompts, one object a line");
  v("question_field", s.question_field, "Its field with the question");
  v("answer_field", s.answer_field,
    "Its field with the answer; where that has \"#### X\" or \\boxed{X}, X is the answer");
  v("template", s.prompt_template, "What the model reads; {question} is replaced");
  v("chat_template", s.chat_template,
    "Put each prompt to the model as a user's message, through the chat template of model.path where "
    "it has one; none: as plain text");
  v("held_out", s.held_out, in_range(0, 100 * million),
    "Prompts kept out of training for evaluation: below 1 a fraction, from 1 a count");
  v("shuffle", s.shuffle, "Draw prompts in a random order, a new one each pass");
  v.section("arithmetic", s.arithmetic, "The built-in arithmetic tasks");
  v("params", s.params, "Parameters of a plugin's source");
}

void describe(option_list& v, named_settings& s) {
  v("name", s.name, "Its name; `millrace plugins` lists all");
  v("params", s.params, "Its parameters; `millrace plugins NAME` shows them");
}

void describe(option_list& v, rollout_settings& s) {
  v("eta", s.eta, in_range(0, 1024),
    "η, the staleness bound: no token sampled more than η versions ago is trained on. 0 is "
    "synchronous");
  v("batch_size", s.batch_size, in_range(1, million),
    "B: rollouts that a training step consumes; a multiple of group_size");
  v("group_size", s.group_size, in_range(1, 4096), "n: answers sampled for each prompt");
  v("max_concurrent", s.max_concurrent, in_range(1, million), "Rollouts being generated, at most");
  v("over_bound", s.over_bound,
    "A rollout with tokens beyond η at its training step: mask those tokens, drop the rollout, or "
    "let the trainer wait for it before it publishes the version that would make it too old");
  v("filter_zero_variance", s.filter_zero_variance,
    "Don't train on groups whose rewards are all equal: their advantages are 0");
  v("max_attempts", s.max_attempts, in_range(1, 1000),
    "Attempts at a rollout, over generators that die, before its group fails");
  v("request_timeout_s", s.request_timeout_s, above(0),
    "Seconds without progress after which a rollout is taken from its generator");
  v("progress_every_tokens", s.progress_every_tokens, in_range(1, million),
    "Tokens after which a generator reports a partial rollout, from which it can be continued "
    "elsewhere");
  v.section("environment", s.environment,
            "A plugin's environment, that answers the model's turns within a rollout; reward.kind is "
            "then \"environment\". No name: an answer is one turn");
}

void describe(option_list& v, sampling_params& s) {
  v("temperature", s.temperature, in_range(0, 100), "Divides the logits; 0: the likeliest token");
  v("top_p", s.top_p, above_up_to(0, 1), "Nucleus: the likeliest tokens with this sum; 1: off");
  v("top_k", s.top_k, in_range(0, million), "The k likeliest tokens; 0: off");
  v("min_p", s.min_p, below(0, 1), "Tokens at least this likely, relative to the best; 0: off");
  v("max_tokens", s.max_tokens, in_range(1, 1 << 24), "Generated tokens of a rollout, at most");
  v("min_tokens", s.min_tokens, in_range(0, 1 << 24), "No end of sequence before this many");
  v("stop", s.stop, "Strings that end an answer; they are not part of its text");
  v("ignore_eos", s.ignore_eos, "Go on to max_tokens whatever is sampled; for benchmarks");
}

void describe(option_list& v, generator_settings& s) {
  v("count", s.count, in_range(1, 4096), "Generators");
  v("max_batch", s.max_batch, in_range(1, 65536), "Sequences that one decodes at a time");
  v("threads", s.threads, in_range(1, 1024),
    "Threads of each generator's tensor operations and of drawing tokens. With a CUDA device only the "
    "drawing uses them; a large vocabulary is worth all cores");
  v("device", s.device, "What the generators compute on: the CPU, or CUDA devices: generator i takes "
                        "number i of those that its process sees, modulo their count");
  v("kv", s.kv, "Caches of running sequences at a weight swap: recomputed under the new weights, "
                "or kept");
  v("dtype", s.dtype, "Precision of the generators' weights, on the way, in memory and in computing: "
                      "bf16, or 8 bits with a scale per row and activations quantised as they come: "
                      "int8 on the CPU, fp8 (E4M3) on a CUDA device, to which it goes as bf16");
  v("kv_cache_tokens", s.kv_cache_tokens, in_range(0, 1e12),
    "Tokens that the cache holds; 0: enough for max_batch sequences of full length, within 4 GiB");
  v("prefill_chunk", s.prefill_chunk, in_range(1, 65536),
    "Prompt tokens that are computed between two decode steps at most: a long prompt does not stall "
    "the answers that run");
  v.section("backend", s.backend,
            "A generator in place of the built-in one: \"openai\", a server with OpenAI's API (params: "
            "endpoint, folder), or a plugin's");
  v.section("sampler", s.sampler, "A plugin's sampler in place of temperature, top_p and so on");
}

void describe(option_list& v, reward_settings& s) {
  v("kind", s.kind, "What judges an answer: \"numeric\", \"exact\", \"format\", \"weighted\", "
                    "\"program\" (an external one) or a plugin's (`millrace plugins` lists all)");
  v("workers", s.workers, in_range(1, 4096), "Reward workers");
  v("timeout_s", s.timeout_s, above(0), "Seconds after which judging an answer has failed");
  v("correct", s.correct, any_number(), "Reward of a right answer");
  v("wrong", s.wrong, any_number(), "Reward of a wrong answer");
  v("params", s.params, "Parameters of the kind; `millrace plugins KIND` shows them");
}

void describe(option_list& v, replay_settings& s) {
  v("capacity", s.capacity, in_range(0, 100 * million),
    "Rollouts that wait for training, at most; 0: (η + 1)·B");
  v("order", s.order, "Which are handed out first");
}

void describe(option_list& v, kl_settings& s) {
  v("coefficient", s.coefficient, in_range(0, 1000), "β of the KL penalty; 0: off");
  v("estimator", s.estimator, "x = log θ − log ref: k1 = x, k2 = x²/2, k3 = e^(−x) − 1 + x");
  v("in", s.place, "Add the penalty to the loss, or subtract it from the reward");
  v("reference", s.reference,
    "The policy to stay near: the one that training started from, or one that follows the trained "
    "one every so many versions");
  v("move_every", s.move_every, in_range(1, 100 * million),
    "Versions after which the moving reference becomes the current policy");
}

void describe(option_list& v, critic_settings& s) {
  v("kind", s.kind,
    "What values come from, for the advantages gae and vtrace: a linear head on the policy's last "
    "hidden states, whose gradient stays its own, or a network of the policy's shape, and first of "
    "its weights, with such a head");
  v("lr", s.lr, in_range(0, 10), "Its learning rate; 0: trainer.lr");
  v("clip", s.clip, in_range(0, million),
    "Value clipping: a value that has moved further than this within a step gains nothing by it; 0: "
    "off");
}

void describe(option_list& v, ewma_settings& s) {
  v("window", s.window, in_range(0, million),
    "W, in versions: the average decays by W/(W + 2) a step and so lies W/2 versions back");
  v("reset_below", s.reset_below, in_range(0, 1),
    "Start the average anew after a step that kept less than this share of its tokens; 0: never");
  v("reset_rule", s.reset_rule,
    "Tokens count as kept when no mask took them out, or when they were not clipped either");
}

void describe(option_list& v, snapshot_settings& s) {
  v("versions", s.versions, in_range(0, 1025),
    "Versions whose tokens get their exact old log-prob, the current one included; 0: η + 1");
  v("device_bytes", s.device_bytes, in_range(0, 1e15),
    "Bytes of older weights kept on the trainer's device, where that isn't the CPU; the youngest");
  v("memory_bytes", s.memory_bytes, in_range(0, 1e15), "Bytes kept in host memory; the next older");
  v("disk_bytes", s.disk_bytes, in_range(0, 1e15), "Bytes kept on disk; the oldest. 0: none");
  v("folder", s.folder, "Where on disk. Empty: the run directory");
}

void describe(option_list& v, interrupt_settings& s) {
  v("slots", s.slots, in_range(0, 64),
    "Versions whose weights stay beside the current ones until every generator has gone on from "
    "them, for the tokens sampled until then; at 0 these are served by the fallback");
}

void describe(option_list& v, dedicated_settings& s) {
  v("threads", s.threads, in_range(1, 1024), "Threads of the old-logit actor's tensor operations");
  v("device", s.device, "What it computes on: the CPU, or the last CUDA device that its process sees");
  v("wait_s", s.wait_s, in_range(0, 3600),
    "With an old-logit node: seconds that a step waits for it to finish its batch, and that publishing "
    "waits, at most, for it to finish fetching an older version; what isn't there by then is served by "
    "algorithm.old_logits_fallback");
}

void describe(option_list& v, algorithm_settings& s) {
  v.section("loss", s.loss, "The policy loss");
  v.section("advantage", s.advantage, "The advantage estimator");
  v("old_logits", s.old_logits,
    "Log-probs of the proximal policy: recomputed at the start of each step (decoupled PPO), those "
    "that the generator reported, an interpolation of these with the current ones, those of an "
    "average of the parameters, or those of the version that sampled each token: from kept versions "
    "in the step (snapshot), the same in an actor beside it (dedicated), or just before a version "
    "is replaced (interrupt)");
  v.section("ewma", s.ewma, "The average of old_logits \"ewma\"");
  v.section("snapshot", s.snapshot, "Versions kept by old_logits \"snapshot\" and \"dedicated\"");
  v.section("interrupt", s.interrupt, "Of old_logits \"interrupt\"");
  v.section("dedicated", s.dedicated, "Of old_logits \"dedicated\"");
  v("old_logits_fallback", s.old_logits_fallback,
    "What serves tokens whose version is not kept any more, with snapshot, dedicated and interrupt: "
    "the average of the parameters, or the current ones");
  v("proxy_weight", s.proxy_weight, in_range(-1, 1),
    "Weight of the generator's log-probs in loglinear and arithmetic; below 0: by each token's "
    "version, 1/(staleness + 1)");
  v("aggregation", s.aggregation, "How per-token losses become one number");
  v.section("kl", s.kl, "KL penalty towards a reference policy");
  v.section("critic", s.critic, "Values of single tokens");
}

void describe(option_list& v, parallel_settings& s) {
  v("dp", s.dp, in_range(1, 4096), "Data parallel: replicas that share each batch");
  v("tp", s.tp, in_range(1, 1024),
    "Tensor parallel: ranks that each replica is split over; divides heads, kv_heads, intermediate");
  v("zero1", s.zero1, "Each of the dp ranks keeps its part of the optimiser's state only (ZeRO-1)");
  v("sequence", s.sequence,
    "Between the split layers, too, each of the tp ranks has only its share of the tokens (sequence "
    "parallel): less memory for as much communication");
  v("sharded_checkpoints", s.sharded_checkpoints,
    "Each rank writes its own part of the optimiser's state into the checkpoint, on a disk that all "
    "ranks see; else rank 0 gathers and writes everything");
  v("port", s.port, in_range(0, 65535), "Port at which rank 0 meets the others; 0: a free one");
  v("timeout_s", s.timeout_s, in_range(0.1, 86400),
    "Seconds after which a rank that has stopped is given up; one that died is noticed at once");
  v("spawn", s.spawn,
    "Rank 0 starts the others on its own machine; else `millrace trainer-rank` does, anywhere");
}

void describe(option_list& v, trainer_settings& s) {
  v("lr", s.lr, in_range(0, 10), "Learning rate of AdamW; pre-trained models take 1e-6 to 1e-5");
  v("lr_warmup_steps", s.lr_warmup_steps, in_range(0, 100 * million),
    "Training steps over which it grows from 0");
  v("lr_schedule", s.lr_schedule, "What it does from then on, until run.steps");
  v("lr_floor", s.lr_floor, in_range(0, 1), "Share of lr that linear and cosine end at");
  v("beta1", s.beta1, below(0, 1), "Decay of the mean of gradients");
  v("beta2", s.beta2, below(0, 1), "Decay of the mean of squared gradients");
  v("eps", s.eps, above(0), "Added to the root of the latter");
  v("weight_decay", s.weight_decay, in_range(0, 10), "Decoupled weight decay");
  v("grad_clip", s.grad_clip, at_least(0), "Largest global norm of the gradient; 0: off");
  v("minibatches", s.minibatches, in_range(1, 4096), "Optimiser steps per pass over a batch");
  v("epochs", s.epochs, in_range(1, 1000), "Passes over each batch");
  v("micro_batch_tokens", s.micro_batch_tokens, in_range(1, 1 << 30),
    "Tokens of one forward and backward pass, at most; no prompt with its answer may be longer");
  v("packing", s.packing,
    "Into micro-batches: each sequence, the longest first, to where the fewest are (AReaL), or as "
    "equal as largest differencing makes them");
  v("share_prompts", s.share_prompts,
    "What the answers of a group have in common at their beginning goes through the model once");
  v("activation_checkpointing", s.activation_checkpointing,
    "Layers compute their inner values again in the backward pass: less memory, a third more time");
  v("device", s.device, "What the trainer computes on: the CPU, or a CUDA device for each rank");
  v("compute", s.compute,
    "What the layers multiply in: bf16 halves what they keep for the backward pass. Weights, their "
    "gradients and averages, the residual stream, norms and the output layer stay fp32");
  v("offload_optimizer", s.offload_optimizer,
    "On a CUDA device: the optimiser's state stays in host memory, and updates are made there, which "
    "frees 8 bytes a parameter on the device and costs the way there and back");
  v("threads", s.threads, in_range(1, 1024), "Threads of the trainer's tensor operations");
  v.section("parallel", s.parallel, "Ranks of the trainer, each a process");
}

void describe(option_list& v, warmup_settings& s) {
  v("enabled", s.enabled, "Teach by demonstrations before the reinforcement learning");
  v("steps", s.steps, in_range(0, 100 * million), "Optimiser steps");
  v("batch_size", s.batch_size, in_range(1, million), "Demonstrations per step");
  v("lr", s.lr, in_range(0, 10), "Learning rate");
  v("target_accuracy", s.target_accuracy, in_range(0, 1),
    "Stop early when held-out accuracy reaches this; 0: never");
}

void describe(option_list& v, eval_settings& s) {
  v("prompts", s.prompts, in_range(0, 100 * million), "Held-out prompts used; 0: all of them");
  v("samples", s.samples, in_range(1, 4096), "Answers per prompt; the accuracy is their mean");
  v("temperature", s.temperature, in_range(0, 100), "0: the likeliest answer");
}

void describe(option_list& v, weight_sync_settings& s) {
  v("transport", s.transport,
    "How generators fetch weights: \"local\" within one process; \"tcp\" by sockets; \"ucx\" by UCX "
    "alone; \"auto\": local in a single process, else UCX where it can map or reach the memory "
    "(shared memory, RDMA) and sockets where it can't");
  v("protocols", s.protocols,
    "Ways that \"auto\" and \"ucx\" may take, as in UCX_TLS (\"sm\", \"rc,tcp\"); tcp means sockets, "
    "and goes with \"auto\" only. Empty: all that there are");
  v("devices", s.devices, "Network devices that may be used, as in UCX_NET_DEVICES (\"lo\", "
                          "\"mlx5_0:1\"). Empty: UCX chooses, and sockets listen at the node's host");
  v("timeout_s", s.timeout_s, above(0), "Seconds that fetching a version may take");
  v("retries", s.retries, in_range(0, 1000), "Further attempts after a failure");
  v("lease_s", s.lease_s, above(0),
    "Seconds that a reader may hold a published version before its buffer is taken back");
  v("delta", s.delta,
    "Send only the elements that changed since the version before, and a part of the weights in "
    "full where that is less. Pays for bf16 and int8 generators and for frozen parts: an fp32 step "
    "changes nearly every byte. Keeps one more copy of the weights in each generator");
}

void describe(option_list& v, supervisor_settings& s) {
  v("max_restarts", s.max_restarts, in_range(0, million),
    "Restarts of any one actor before the run ends");
  v("stall_report_s", s.stall_report_s, above(0),
    "Seconds without a training step after which it is told who waits for whom");
}

void describe(option_list& v, node_actors_settings& s) {
  v("trainer", s.trainer, in_range(0, 1), "1 on exactly one node");
  v("generator", s.generator, in_range(0, 1024), "Generators");
  v("reward", s.reward, in_range(0, 1024), "Reward workers");
  v("replay", s.replay, in_range(0, 1), "1 on exactly one node");
  v("evaluator", s.evaluator, in_range(0, 1), "At most one; on the trainer's node if on none");
  v("old_logits", s.old_logits, in_range(0, 1),
    "With algorithm.old_logits \"dedicated\": at most one; in the trainer's process if on none");
}

void describe(option_list& v, node_settings& s) {
  v("name", s.name, "Unique in the cluster");
  v("host", s.host, "Address or name of the machine that it runs on");
  v("port", s.port, in_range(0, 65535), "Port that the trainer's node listens on");
  v.section("actors", s.actors, "How many of each kind");
  v("devices", s.devices, "CUDA devices that it sees; empty: all");
  v("env", s.env, "Environment variables that it is started with");
}

void describe(option_list& v, tls_settings& s) {
  v("certificate", s.certificate, "PEM file with the certificate of this host's nodes");
  v("key", s.key, "PEM file with its private key");
  v("ca", s.ca, "PEM file with the certificate that signed those of all nodes");
}

void describe(option_list& v, cluster_settings& s) {
  v.list("nodes", s.nodes,
         "The processes of a cluster: name, host, port, actors {trainer, generator, reward, replay, "
         "evaluator, old_logits}, devices, env. Empty: everything in one process");
  v.section("tls", s.tls, "Certificates of the links between nodes (`millrace certs` makes them)");
  v("insecure", s.insecure, "Allow links beyond loopback without certificates");
  v("heartbeat_s", s.heartbeat_s, in_range(0.05, 60), "Seconds between signs of life");
  v("lost_after_s", s.lost_after_s, in_range(0.2, 600),
    "Seconds of silence after which a node is taken as gone");
  v("max_message_mb", s.max_message_mb, in_range(1, 4095),
    "Megabytes of a message between nodes; a longer one cuts the link. The longest is a batch on its "
    "way from the replay buffer's node to the trainer's: about 12 bytes a token");
  v("join_timeout_s", s.join_timeout_s, above(0),
    "Seconds that a node tries to reach the trainer's node");
}

void describe(option_list& v, monitor_settings& s) {
  v("enabled", s.enabled, "Show the run over HTTP: dashboard, /metrics for Prometheus, `millrace top`");
  v("host", s.host, "Address to listen on; beyond loopback, set a token too");
  v("port", s.port, in_range(0, 65535), "0: any that is free; the run says which");
  v("token", s.token, "What a reader must send as \"Authorization: Bearer TOKEN\"; empty: nothing");
}

void describe(option_list& v, plugin_settings& s) {
  v("path", s.path, "The shared library; relative paths start at the working directory");
  v("isolated", s.isolated,
    "Run its rewards in processes of their own: one that crashes fails an answer and nothing else");
  v("config", s.config, "For the plugin: what all that it registers may read");
}

void describe(option_list& v, actor_settings& s) {
  v("kind", s.kind, "Name that a plugin registered an actor by");
  v("params", s.params, "Its parameters; their names are checked by it");
}

void describe(option_list& v, log_settings& s) {
  v("level", s.level, "Least weight of a message");
  v("tensorboard", s.tensorboard, "Write TensorBoard event files beside metrics.jsonl");
}

void describe(option_list& v, settings& s) {
  v("seed", s.seed, at_least(0), "Of initialisation, data and sampling");
  v("deterministic", s.deterministic,
    "Same tokens and parameters, bit for bit, in every run; needs rollout.eta 0");
  v.section("run", s.run, "Length of the run and what it leaves");
  v.section("model", s.model, "The policy");
  v.section("tokenizer", s.tokenizer, "Text to tokens");
  v.section("data", s.data, "Prompts");
  v.section("rollout", s.rollout, "Admission of rollouts, and their staleness");
  v.section("sampling", s.sampling, "How answers are sampled in training");
  v.section("generator", s.generator, "Generators");
  v.section("reward", s.reward, "Judging answers");
  v.section("replay", s.replay, "Finished groups that wait for training");
  v.section("algorithm", s.algorithm, "Losses and advantages");
  v.section("trainer", s.trainer, "The optimiser and its batches");
  v.section("warmup", s.warmup, "Supervised warm-up before the reinforcement learning");
  v.section("eval", s.eval, "Evaluation on held-out prompts");
  v.section("weight_sync", s.weight_sync, "From the trainer to the generators");
  v.section("supervisor", s.supervisor, "Restarts and stalls");
  v.section("cluster", s.cluster, "Nodes of a cluster");
  v.section("monitor", s.monitor, "Watching a run from outside");
  v.section("log", s.log, "Messages");
  v.list("plugins", s.plugins,
         "Shared libraries with rewards, prompt sources, losses and so on: path, isolated, config");
  v.list("actors", s.actors, "Actors of plugins, that see every group and step: kind, params");
}

option_list options_of(settings& s) {
  option_list list;
  describe(list, s);
  return list;
}

} // namespace millrace
