#include "serve/engine/metrics.h"

#include <algorithm>

#include "base/text.h"

namespace moracle::serve {
namespace {

void write_head(const char* name, const char* type, const char* help, std::string& out) {
  out += str("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

void write_value(const char* name, const char* type, const char* help, auto value,
                 std::string& out) {
  write_head(name, type, help, out);
  out += str(name, " ", value, "\n");
}

void write_placed_devices(const PlacementCounts& placed, std::string& out) {
  write_head("moracle_expert_slot_device_hits_total", "counter",
             "Choices of experts in slots of each GPU; 0 computes the rest of the model, too", out);
  for (size_t d = 0; d < placed.hits_of_devices.size(); ++d)
    out += str("moracle_expert_slot_device_hits_total{device=\"", d, "\"} ",
               placed.hits_of_devices[d], "\n");
  write_value("moracle_placed_step_seconds_total", "counter",
              "Time of steps of a model with experts in slots", placed.steps_us / 1e6, out);
  write_value("moracle_host_wait_seconds_total", "counter",
              "Time in these steps that the CPU waited for GPUs", placed.host_waits_us / 1e6, out);
  if (placed.slots_wait_us < 0) return;  // the device does not tell
  write_value("moracle_gpu_wait_seconds_total", "counter",
              "Time in these steps that the GPU waited for experts on the CPU",
              placed.slots_wait_us / 1e6, out);
}

}  // namespace

void Histogram::add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[bucket];
  sum_ += value;
}

void Histogram::write(const std::string& name, const char* help, std::string& out) const {
  write_head(name.c_str(), "histogram", help, out);
  int64_t count = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    count += counts_[i];
    out += str(name, "_bucket{le=\"", bounds_[i], "\"} ", count, "\n");
  }
  count += counts_.back();
  out += str(name, "_bucket{le=\"+Inf\"} ", count, "\n", name, "_sum ", sum_, "\n", name, "_count ",
             count, "\n");
}

void Metrics::set(const Gauges& gauges) {
  const std::lock_guard lock(mutex_);
  gauges_ = gauges;
}

Gauges Metrics::gauges() const {
  const std::lock_guard lock(mutex_);
  return gauges_;
}

void Metrics::step(int64_t prompt_tokens, int64_t new_tokens, double seconds) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += prompt_tokens;
  new_tokens_ += new_tokens;
  step_.add(seconds);
}

void Metrics::drafts(int64_t drafted, int64_t accepted, double saved_seconds) {
  const std::lock_guard lock(mutex_);
  speculation_.steps += drafted > 0;
  speculation_.drafted += drafted;
  speculation_.accepted += accepted;
  speculation_.saved_seconds += saved_seconds;
}

void Metrics::parts(const PartSeconds& seconds) {
  const std::lock_guard lock(mutex_);
  for (const auto& [labels, value] : seconds) parts_[labels] += value;
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::next_token(double seconds) {
  const std::lock_guard lock(mutex_);
  next_token_.add(seconds);
}

void Metrics::request_ended(const char* outcome, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[outcome];
  request_.add(seconds);
}

void Metrics::reload_ended(bool done) {
  const std::lock_guard lock(mutex_);
  ++(done ? reloads_ : failed_reloads_);
}

void Metrics::expert_load(double imbalance) {
  const std::lock_guard lock(mutex_);
  imbalance_ = imbalance;
}

void Metrics::rebalance_ended(bool done, int64_t layers, int64_t experts) {
  const std::lock_guard lock(mutex_);
  ++(done ? rebalances_ : failed_rebalances_);
  moved_layers_ += layers;
  moved_experts_ += experts;
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  const Gauges& g = gauges_;
  write_value("moracle_requests_running", "gauge", "Running sequences", g.running, out);
  write_value("moracle_requests_waiting", "gauge", "Sequences in the queue", g.waiting, out);
  write_value("moracle_cache_pages", "gauge", "Pages of the KV cache", g.pages, out);
  write_value("moracle_cache_pages_in_use", "gauge", "Pages that running sequences hold",
              g.pages_in_use, out);
  write_value("moracle_cache_pages_reusable", "gauge", "Unused pages in the prefix cache",
              g.pages_cached, out);
  write_value("moracle_step_budget_tokens", "gauge", "Token limit of a step", g.step_budget, out);
  write_value("moracle_preemptions_total", "counter", "Preempted sequences", g.preemptions, out);
  write_value("moracle_prefix_cache_tokens_total", "counter",
              "Prompt tokens reused from the prefix cache", g.reused_tokens, out);
  if (g.most_states > 0) {
    write_value("moracle_cache_states", "gauge", "Kept states of recurrent layers", g.states, out);
    write_value("moracle_cache_states_restored_total", "counter",
                "Sequences that began with a kept state", g.traffic.states_restored, out);
  }
  if (g.most_ram_bytes > 0) {
    write_value("moracle_cache_ram_bytes", "gauge", "Host memory for pages that left the cache",
                g.most_ram_bytes, out);
    write_value("moracle_cache_ram_bytes_in_use", "gauge", "Host memory that holds such pages",
                g.ram_bytes, out);
    write_value("moracle_cache_ram_hits_total", "counter",
                "Pages and states that came back from host memory", g.traffic.ram_hits, out);
    write_value("moracle_cache_ram_bytes_restored_total", "counter",
                "Bytes that came back from host memory", g.traffic.bytes_back, out);
    write_value("moracle_cache_ram_bytes_saved_total", "counter", "Bytes that moved to host memory",
                g.traffic.bytes_saved, out);
    write_value("moracle_cache_ram_errors_total", "counter",
                "Failed moves, after which the prefix cache was emptied", g.traffic.errors, out);
  }
  if (g.placed.hits + g.placed.misses + g.placed.streamed_calls > 0) {
    write_value("moracle_expert_slot_hits_total", "counter",
                "Choices of experts that lay in slots of the GPU", g.placed.hits, out);
    write_value("moracle_expert_slot_misses_total", "counter",
                "Choices of experts that the CPU computed", g.placed.misses, out);
    write_value("moracle_expert_moves_total", "counter", "Experts that moved into slots",
                g.placed.moves, out);
    write_value("moracle_expert_bytes_moved_total", "counter",
                "Bytes of experts that crossed to the GPU, into slots or for long steps",
                g.placed.bytes_moved + g.placed.bytes_streamed, out);
    write_value("moracle_expert_reads_total", "counter",
                "Experts that were read from files, because host memory did not hold them",
                g.placed.reads, out);
    write_placed_devices(g.placed, out);
  }
  write_value("moracle_prompt_tokens_total", "counter", "Prompt tokens computed", prompt_tokens_,
              out);
  write_value("moracle_generated_tokens_total", "counter", "New tokens", new_tokens_, out);
  if (speculation_.steps > 0) {
    write_value("moracle_draft_steps_total", "counter", "Steps that verified drafts",
                speculation_.steps, out);
    write_value("moracle_draft_tokens_total", "counter", "Drafted tokens", speculation_.drafted,
                out);
    write_value("moracle_draft_tokens_accepted_total", "counter", "Accepted drafts",
                speculation_.accepted, out);
    write_value("moracle_draft_saved_seconds", "gauge",
                "Time that accepted drafts saved minus the time of all drafts",
                speculation_.saved_seconds, out);
  }
  write_value("moracle_reloads_total", "counter", "Reloads of the weights", reloads_, out);
  write_value("moracle_failed_reloads_total", "counter", "Reloads that kept the old weights",
              failed_reloads_, out);
  if (imbalance_) {
    write_value("moracle_expert_load_imbalance", "gauge",
                "Largest load of a layer's ranks over their mean, before the last rebalance",
                *imbalance_, out);
  }
  write_value("moracle_rebalances_total", "counter", "Rebalances of experts over ranks",
              rebalances_, out);
  write_value("moracle_failed_rebalances_total", "counter", "Failed rebalances", failed_rebalances_,
              out);
  write_value("moracle_moved_layers_total", "counter", "Layers whose experts moved", moved_layers_,
              out);
  write_value("moracle_moved_experts_total", "counter", "Experts that ranks loaded", moved_experts_,
              out);
  write_head("moracle_requests_total", "counter", "Finished sequences by outcome", out);
  for (const auto& [outcome, count] : requests_)
    out += str("moracle_requests_total{outcome=\"", outcome, "\"} ", count, "\n");
  if (!parts_.empty()) {
    write_head("moracle_part_seconds_total", "counter",
               "Time of each part of the model, by the backends that serve it", out);
  }
  for (const auto& [labels, seconds] : parts_)
    out += str("moracle_part_seconds_total{", labels, "} ", seconds, "\n");
  first_token_.write("moracle_time_to_first_token_seconds",
                     "Time from submission to the first token", out);
  next_token_.write("moracle_time_per_token_seconds", "Time between two tokens of a sequence", out);
  request_.write("moracle_request_seconds", "Time from submission to the end of a sequence", out);
  step_.write("moracle_step_seconds", "Time of a step of the model", out);
  return out;
}

}  // namespace moracle::serve
