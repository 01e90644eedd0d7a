// Machines and the oracle.
#include <cstdlib>
#include <cstring>

#include "base/try.h"
#include "c_api/handles.h"
#include "c_api/structs.h"

namespace moracle::c_api {
namespace {

Result<moracle_machine*> find_machine(const char* name) {
  MORACLE_TRY(Machine machine, Machine::find(name == nullptr ? "here" : name));
  return new moracle_machine{std::move(machine)};
}

Result<moracle_selection*> select_for(const moracle_layer* layer, const moracle_machine* machine,
                                      const moracle_request* from) {
  MORACLE_CHECK(check_given(layer, "layer"));
  MORACLE_CHECK(check_given(machine, "machine"));
  MORACLE_TRY(const moracle_request wanted, read_optional_struct(from, "request"));
  Request request;
  request.layer = layer->spec;
  if (wanted.backend != nullptr) request.backend = wanted.backend;
  if (wanted.device != nullptr) {
    MORACLE_TRY(const DeviceName device, parse_device(wanted.device));
    request.platform = device.platform;
    if (device.platform != Platform::kCpu) request.device_index = device.index;
  }
  if (wanted.max_num_tokens != 0) request.max_num_tokens = wanted.max_num_tokens;
  request.deterministic = wanted.deterministic != 0;
  request.bf16_activations = wanted.bf16_activations != 0;
  request.parallel.ep_size = wanted.ep_size == 0 ? 1 : wanted.ep_size;
  request.parallel.ep_rank = wanted.ep_rank;
  MORACLE_CHECK(check(request.layer));
  if (wanted.expert_map != nullptr) {
    const int32_t* const local = wanted.expert_map;
    MORACLE_TRY(request.parallel.expert_map,
                ExpertMap::from({local, local + request.layer.num_experts}));
  }
  Selection selection = select(request, machine->value);
  std::string backend(selection.plan ? name(*selection.plan->backend) : "");
  return new moracle_selection{std::move(selection), std::move(backend)};
}

// Returns a copy for moracle_text_free.
Result<char*> copied(const std::string& text) {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

Result<char*> explained(const moracle_selection* selection, bool all_reasons) {
  MORACLE_CHECK(check_given(selection, "selection"));
  return copied(explain(selection->value, all_reasons));
}

Result<char*> as_json(const moracle_selection* selection) {
  MORACLE_CHECK(check_given(selection, "selection"));
  return copied(explain_json(selection->value));
}

}  // namespace
}  // namespace moracle::c_api

namespace c_api = moracle::c_api;

moracle_status moracle_machine_find(const char* name, moracle_machine** out,
                                    moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::find_machine(name); });
}
void moracle_machine_free(moracle_machine* machine) {
  delete machine;
}

moracle_status moracle_select(const moracle_layer* layer, const moracle_machine* machine,
                              const moracle_request* request, moracle_selection** out,
                              moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::select_for(layer, machine, request); });
}
const char* moracle_selection_backend(const moracle_selection* selection) {
  if (selection == nullptr || selection->backend.empty()) return nullptr;
  return selection->backend.c_str();
}
moracle_status moracle_selection_explain(const moracle_selection* selection, int32_t all_reasons,
                                         char** out, moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::explained(selection, all_reasons != 0); });
}
moracle_status moracle_selection_json(const moracle_selection* selection, char** out,
                                      moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::as_json(selection); });
}
void moracle_selection_free(moracle_selection* selection) {
  delete selection;
}
void moracle_text_free(char* text) {
  std::free(text);
}
