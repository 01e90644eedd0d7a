// Builds a Model from a Description: selects backends, then reads, packs and releases.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "kernels/kernel_device.h"
#include "kernels/ops.h"
#include "models/decoder/model_state.h"
#include "models/divide.h"
#include "models/host_experts/place_experts.h"
#include "models/ranks.h"
#include "models/residency.h"
#include "models/routing_statistics.h"
#include "oracle/carve.h"
#include "quant/blocks/gguf_blocks.h"

namespace moracle {
namespace {

// Rows of blocks as f32.
std::vector<float> decoded(const CanonicalMatrix& rows, ThreadPool& pool) {
  const DType type = rows.key.dtype;
  std::vector<float> values(static_cast<size_t>(rows.n * rows.k));
  pool.split(rows.n, [&](int64_t begin, int64_t end) {
    decode_blocks(type, rows.codes.data() + begin * rows.row_bytes(),
                  (end - begin) * rows.k / block(type).elements, values.data() + begin * rows.k);
  });
  return values;
}

// Copies a table's rows to device memory, as stored or with blocks as f32.
Result<Buffer> read_table(const DescribedMatrix& table, DType type, Device& device) {
  const auto bytes = static_cast<size_t>(row_bytes(type, table.shape().k));
  MORACLE_TRY(Buffer memory, device.allocate(table.shape().n * bytes));
  ThreadPool& pool = kernel_device(device).host_threads();
  Status sent;
  const auto send = [&](const CanonicalMatrix& slice, int64_t first_row) {
    if (!sent) return;
    std::byte* const to = memory.as<std::byte>() + first_row * bytes;
    if (!device.host_visible()) {
      std::vector<float> values;
      if (type != slice.key.dtype) values = decoded(slice, pool);
      const void* const from =
          values.empty() ? static_cast<const void*>(slice.codes.data()) : values.data();
      sent = device.upload(to, from, slice.n * bytes);
      if (sent) sent = device.synchronize();  // before the slice is freed
      return;
    }
    pool.split(slice.n, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin * bytes, slice.codes.data() + begin * bytes, (end - begin) * bytes);
    });
  };
  MORACLE_CHECK(table.read_slices(0, pool, send));
  MORACLE_CHECK(sent);
  return memory;
}

void set_embedding(Model::State& m, Buffer&& table, DType type) {
  m.embedding_buffer = std::move(table);
  m.embedding = {m.embedding_buffer.as<std::byte>(), type, {m.spec.vocab_size, m.spec.hidden_size}};
}

Status load_embedding(Model::State& m, const Description& description) {
  Device& device = m.workspace->device();
  const DType type = description.embedding_type(device.platform());
  MORACLE_TRY(Buffer table, read_table(description.embedding, type, device));
  set_embedding(m, std::move(table), type);
  m.weight_bytes += description.embedding_bytes(device.platform());
  return {};
}

// The tables of n-grams; empty for layers without one.
Result<std::vector<Buffer>> read_ngram_tables(const Description& description, Device& device) {
  std::vector<Buffer> tables;
  for (const LayerDescription& layer : description.layers) {
    Buffer& table = tables.emplace_back();
    if (!layer.ngrams) continue;
    const DescribedMatrix& from = layer.ngrams->table;
    MORACLE_TRY(table, read_table(from, from.shape().key.dtype, device));
  }
  return tables;
}
void set_ngram_tables(Model::State& m, std::vector<Buffer>&& tables) {
  for (size_t l = 0; l < tables.size(); ++l)
    if (tables[l].bytes() > 0) m.layers[l].ngrams.table = std::move(tables[l]);
}

Status allocate_activations(Model::State& m, const Description& description) {
  Device& device = m.workspace->device();
  const DType dtype = device.activation_dtype();
  const size_t bytes = carve_activations(description, m.max_num_tokens, dtype, nullptr).bytes;
  MORACLE_TRY(m.activations_buffer, device.allocate(bytes));
  m.activations =
      carve_activations(description, m.max_num_tokens, dtype, m.activations_buffer.as<std::byte>());
  // Allocated memory is zeroed, as first_expert must be.
  const std::vector<float> ones(m.max_num_tokens, 1.0f);
  MORACLE_CHECK(device.upload(m.activations.feed_forward.weight_one, ones.data(),
                              ones.size() * sizeof(float)));
  return device.synchronize();  // before `ones` is destroyed
}

Status allocate_join(Model::State& m, const JoinDescription& join) {
  Device& device = m.workspace->device();
  const DType dtype = device.activation_dtype();
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    Matrix given = carver.take_matrix(dtype, m.max_num_tokens, m.spec.hidden_size);
    Matrix joined = carver.take_matrix(dtype, m.max_num_tokens, 2 * m.spec.hidden_size);
    return std::tuple(given, joined, carver.bytes());
  };
  m.join.emplace();
  m.join->before_norm = m.keeps_hidden = join.before_norm;
  MORACLE_TRY(m.join->memory, device.allocate(std::get<2>(carve(nullptr))));
  std::tie(m.join->given, m.join->joined, std::ignore) = carve(m.join->memory.as<std::byte>());
  return {};
}

// For Ops::scale_rows: the same scale for every token. Nothing for a scale of 1.
Status load_scales(const Model::State& m, Buffer& to, float scale, Loader& loader) {
  const auto count = static_cast<size_t>(scale == 1 ? 0 : m.max_num_tokens);
  const std::vector<float> scales(count, scale);
  MORACLE_CHECK(loader.load(to, scales));
  return loader.device().synchronize();  // before `scales` is destroyed
}

Status load_steps(const Model::State& m, OutputSteps& to, const OutputStepsDescription& from,
                  Loader& loader) {
  MORACLE_CHECK(loader.load(to.norm, from.norm));
  MORACLE_CHECK(load_scales(m, to.scales, from.scale, loader));
  return load_scales(m, to.sum_scales, from.sum_scale, loader);
}

// Places the next layer's cache in a page and its state in a sequence's state, and adds their
// bytes.
LayerCache layer_cache(const AttentionSizes& sizes, DType dtype, int64_t page, size_t& page_bytes,
                       size_t& state_bytes) {
  const auto take = [&](int64_t bytes) {
    const auto at = static_cast<int64_t>(page_bytes);
    page_bytes += (static_cast<size_t>(page * bytes) + 255) / 256 * 256;
    return at;
  };
  const CachedBytes bytes = cached_bytes(sizes, dtype);
  const int64_t keys = take(bytes.keys), values = take(bytes.values);
  const int64_t key_scales = take(bytes.scales), value_scales = take(bytes.scales);
  const int64_t index_keys = take(bytes.index_keys);
  const auto take_entries = [&](int64_t bytes_of_entry) {
    const int64_t count = entries_per_page(bytes.entry_rate, page);
    const auto at = static_cast<int64_t>(page_bytes);
    page_bytes += (static_cast<size_t>(count * bytes_of_entry) + 255) / 256 * 256;
    return at;
  };
  const int64_t entries = take_entries(bytes.entry), entry_keys = take_entries(bytes.entry_key);
  const auto state = static_cast<int64_t>(state_bytes);
  state_bytes += sizes.state_bytes;
  return {.dtype = dtype,
          .keys = keys,
          .values = values,
          .num_heads = sizes.num_kv_heads,
          .state = state,
          .key_scales = key_scales,
          .value_scales = value_scales,
          .index_keys = index_keys,
          .index_dtype = index_dtype(dtype),
          .entries = entries,
          .entry_keys = entry_keys};
}

Status load_hyper(HyperConnection& to, const HyperDescription& from, Loader& loader) {
  MORACLE_CHECK(loader.load(to.projection, from.projection));
  MORACLE_CHECK(loader.load(to.base, from.base));
  return loader.load(to.scale, from.scale);
}

Status load_layer(Model::State& m, Layer& to, LayerDescription&& from, Loader& loader) {
  MORACLE_CHECK(loader.load(to.input_norm, from.input_norm));
  MORACLE_CHECK(loader.load(to.post_norm, from.post_norm));
  to.parallel = from.parallel;
  MORACLE_CHECK(load_hyper(to.attention_hyper, from.attention_hyper, loader));
  MORACLE_CHECK(load_hyper(to.mlp_hyper, from.mlp_hyper, loader));
  if (from.ngrams) MORACLE_CHECK(to.ngrams.load(std::move(*from.ngrams), loader));
  if (from.attention_residual)
    MORACLE_CHECK(to.attention_residual.load(std::move(*from.attention_residual), loader));
  if (from.mlp_residual) MORACLE_CHECK(to.mlp_residual.load(std::move(*from.mlp_residual), loader));
  MORACLE_CHECK(load_steps(m, to.attention_output, from.attention_output, loader));
  MORACLE_CHECK(load_steps(m, to.mlp_output, from.mlp_output, loader));
  if (to.attention != nullptr) MORACLE_CHECK(to.attention->load(std::move(from.attention), loader));
  return to.feed_forward.load(std::move(from), m.spec.norm_epsilon, loader);
}

// Loads everything except the embedding, in the order of visit_modules.
Status load_weights(Model::State& m, Description&& from, Loader& loader) {
  MORACLE_CHECK(loader.load(m.final_norm, from.final_norm));
  MORACLE_CHECK(load_hyper(m.final_hyper, from.final_hyper, loader));
  MORACLE_CHECK(load_scales(m, m.embedding_scales, from.spec.embedding_scale, loader));
  if (from.spec.residual_rank > 0) {
    const float inverse = 1.0f / static_cast<float>(from.spec.num_streams);
    MORACLE_CHECK(load_scales(m, m.inverse_streams, inverse, loader));
  }
  if (from.join) {
    MORACLE_CHECK(loader.load(m.join->embedding_norm, from.join->embedding_norm));
    MORACLE_CHECK(loader.load(m.join->hidden_norm, from.join->hidden_norm));
    MORACLE_CHECK(loader.load(m.join->matrix, std::move(from.join->matrix)));
  }
  for (size_t l = 0; l < m.layers.size(); ++l)
    MORACLE_CHECK(load_layer(m, m.layers[l], std::move(from.layers[l]), loader));
  if (from.final_residual)
    MORACLE_CHECK(m.final_residual.load(std::move(*from.final_residual), loader));
  if (m.output_shares.size > 1) loader.next_is_own();
  return loader.load(m.output, std::move(from.output));
}

// The slots in the order in which devices take experts, those used most first: one each in turn,
// and backwards in every second round, so that their work is equal.
std::vector<int64_t> dealt_slots(const std::vector<int64_t>& of_devices) {
  const auto count = static_cast<int64_t>(of_devices.size());
  const int64_t rounds = *std::max_element(of_devices.begin(), of_devices.end());
  std::vector<int64_t> firsts(of_devices.size());
  std::exclusive_scan(of_devices.begin(), of_devices.end(), firsts.begin(), int64_t{0});
  std::vector<int64_t> slots;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t d = round % 2 == 0 ? i : count - 1 - i;
      if (round < of_devices[d]) slots.push_back(firsts[d] + round);
    }
  }
  return slots;
}

// Fills the slots of each layer: with the experts that options.measured_load says are used most,
// or with the first ones. Measures what the policy needs.
Status fill_slots(Model::State& m, const ModelOptions& options) {
  std::optional<PlacedTimes> times;                  // of the first layer, for all
  size_t most = std::numeric_limits<size_t>::max();  // slots to fill
  for (size_t l = 0; l < m.layers.size(); ++l) {
    PlacedMoe* const placed = m.layers[l].feed_forward.routed.placed();
    if (placed == nullptr) continue;
    // Of several ranks each has its own; one process has all, in memory or in files.
    const Plan& on_host = placed->host_plan();
    std::vector<int32_t> order = options.parallel.ep_size > 1
                                     ? on_host.experts.global()
                                     : ExpertMap::all(on_host.layer.num_experts).global();
    if (options.measured_load) {
      const std::vector<int64_t>& tokens =
          options.measured_load->tokens.at(static_cast<int64_t>(l));
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return tokens[a] > tokens[b]; });
    }
    const std::vector<int64_t> slots = dealt_slots(placed->slots_of_devices());
    for (size_t i = 0; i < std::min(slots.size(), most); ++i)
      MORACLE_CHECK(placed->place(order[i], slots[i]));
    if (!times) {
      MORACLE_TRY(times, placed->measure());
      m.placed_times = *times;
      if (!options.deterministic) {
        m.call_ways = times->ways;
        most = static_cast<size_t>(std::max<int64_t>(times->balanced_slots, 1));
      }
      for (size_t i = most; i < slots.size(); ++i) MORACLE_CHECK(placed->evict(slots[i]));
    }
    placed->set_policy({times->costs});
    placed->set_ways(m.call_ways);
  }
  return {};
}

Status check_same_model(const Model::State& m, const Description& description,
                        const std::string& folder) {
  const auto differs = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, folder, "reload", std::move(need), std::move(fact)};
  };
  if (description.spec != m.spec || description.layers.size() != m.layers.size())
    return differs("the architecture and the sizes of the loaded model", "they differ");
  for (size_t l = 0; l < m.layers.size(); ++l) {
    if (description.layers[l].ngrams.has_value() != m.layers[l].ngrams.loaded())
      return differs("the layers with n-grams of the loaded model", "they differ");
  }
  const DType dtype = description.embedding_type(m.workspace->device().platform());
  if (dtype == m.embedding.dtype) return {};
  return differs(str("embeddings in ", name(m.embedding.dtype), ", as in the loaded model"),
                 str("they are ", name(dtype), "; start a new process to load it"));
}

// Changes when a file is written or replaced.
std::string versions_of(const Checkpoint& checkpoint) {
  std::vector<std::string> paths = {checkpoint.state().config.path()};
  for (const TensorFile& file : checkpoint.state().tensors.files()) paths.push_back(file.path());
  std::string text;
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) continue;  // a later comparison finds the file, or not
    text += str(path, " ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec, "\n");
  }
  return text;
}

}  // namespace

Status ModelAccess::check_unchanged(const Model& model, const Checkpoint& checkpoint) {
  if (versions_of(checkpoint) == model.state_->file_versions) return {};
  return Error{ErrorKind::kInvalidArgument, checkpoint.folder(), "",
               "the files that the model was read from; reload the model first",
               "they have changed"};
}

DeviceOptions device_options(const ModelOptions& options) {
  return {.threads = options.threads,
          .pin = options.pin,
          .kernel_cache = options.kernel_cache,
          .compiling = options.compiling};
}

Result<Model> Model::load(const Checkpoint& checkpoint, const ModelOptions& options) {
  return or_out_of_memory(checkpoint.folder(), [&] { return State::load(checkpoint, options); });
}

namespace {

// The layer for multi-token prediction is a model of its own on the same device.
Status load_next_tokens(const Checkpoint& checkpoint, const ModelOptions& options,
                        Model::State& m) {
  if (options.group || options.device_memory > 0) {
    return Error{ErrorKind::kUnsupported, "", "speculate",
                 "one process that holds all experts on its device for mtp, or ngram",
                 options.group ? "several ranks share the model" : "experts lie in host memory"};
  }
  MORACLE_TRY(Description description, describe_next_tokens(checkpoint, changes_of(options)));
  MORACLE_TRY(Model loaded,
              ModelAccess::load(std::move(description), next_token_options(options), {},
                                checkpoint.total_bytes(), nullptr, m.workspace->shared_device()));
  m.weight_bytes += loaded.weight_bytes();
  m.next_tokens = std::make_unique<Model>(std::move(loaded));
  m.keeps_hidden = ModelAccess::state(*m.next_tokens).join->before_norm;
  return {};
}

}  // namespace

ModelOptions next_token_options(const ModelOptions& options) {
  ModelOptions own = options;
  own.adapters.clear();
  own.read_adapters.clear();
  own.cache_bytes = 0;  // its caches are smaller than the model's
  own.count_routing = false;
  own.progress = {};
  return own;
}

Result<Model> Model::State::load(const Checkpoint& checkpoint, const ModelOptions& wanted) {
  ModelOptions options = wanted;
  ReadRecord& record = checkpoint.state().tensors.record();
  record.on = options.group != nullptr;
  std::string versions = versions_of(checkpoint);
  std::optional<ResidencyPlan> residency;
  MORACLE_TRY(Description description,
              options.weights == WeightResidency::kPacked
                  ? describe(checkpoint, changes_of(options))
                  : describe_resident(checkpoint, Machine::here(), options, residency));
  const Result<AdapterList> opened = open_adapters(checkpoint, options);
  std::vector<Fact> facts;
  if (options.group) {
    facts = facts_before_loading(checkpoint, options, opened);
    MORACLE_CHECK(agree(*options.group, facts));
  }
  if (!opened) return opened.error();
  const AdapterList& adapters = *opened;
  MORACLE_CHECK(check_measured_load(options, checkpoint));
  MORACLE_TRY(Model model, ModelAccess::load(std::move(description), options, adapters,
                                             checkpoint.total_bytes(), &record));
  model.state_->residency = std::move(residency);
  model.state_->architecture = checkpoint.architecture();
  model.state_->num_layers = static_cast<int64_t>(model.state_->layers.size());
  model.state_->weights_text = identity_of(facts);
  model.state_->file_versions = std::move(versions);
  if (options.group)
    MORACLE_CHECK(agree(*options.group, facts_after_loading(*model.state_, record)));
  record.on = false;
  if (options.next_tokens) MORACLE_CHECK(load_next_tokens(checkpoint, options, *model.state_));
  return model;
}

Result<Model> ModelAccess::load(Description&& description, const ModelOptions& wanted,
                                AdapterSpan adapters, int64_t total_bytes, ReadRecord* record,
                                std::shared_ptr<Device> device) {
  ModelOptions options = wanted;
  const Machine machine = Machine::here();
  MORACLE_CHECK(set_free_memory(options, machine));
  MORACLE_CHECK(check_ranks(options));
  MORACLE_CHECK(divide(description, options));
  if (device == nullptr) {
    MORACLE_TRY(device, open_device(options.device, device_options(options)));
  }
  if (options.count_routing && device->platform() != Platform::kCpu) {
    return Error{ErrorKind::kUnsupported, "", "routing statistics",
                 "device cpu: the host counts after each router",
                 str(device->name(), " computes a step without the host")};
  }
  MORACLE_TRY(std::vector<ModuleChoice> modules, choose(description, options, machine, adapters));
  MORACLE_TRY(const ModelPlan planned, plan_memory(description, modules, options, machine));
  auto state = std::make_unique<Model::State>();
  Model::State& m = *state;
  MORACLE_TRY(m.cache_dtype,
              cache_dtype(options.kv_cache, device->platform(), device->activation_dtype()));
  m.workspace = std::make_shared<Workspace>(device);
  m.batch_invariant = options.deterministic;
  m.bf16_attention = planned.bf16_attention;
  m.recorded.on = options.graphs;
  m.spec = description.spec;
  m.max_num_tokens = tokens_per_step(options);
  m.changes = changes_of(options);
  m.tp_size = options.tp_size;
  m.output_shares = description.output_shares;
  m.num_adapters = static_cast<int64_t>(adapters.size());
  if (options.group) {
    MORACLE_CHECK(join_ranks(m, modules, options));
    for (const ModuleChoice& module : modules)
      if (module.part == "experts") m.expert_requests[*module.layer] = module.selection.request;
  }
  Loader loader(m.workspace, std::move(modules), adapters, options.progress, total_bytes);
  loader.set_record(record, options.tp_size > 1);
  if (planned.num_slots >= 0) {
    DeviceOptions host = device_options(options);
    MORACLE_TRY(std::shared_ptr<Device> cpu, open_device("cpu", host));
    m.recorded.devices =
        std::make_shared<DevicePair>(std::make_shared<Workspace>(std::move(cpu)), m.workspace);
    for (const DeviceName& name : options.slot_devices) {
      MORACLE_TRY(std::shared_ptr<Device> other, open_device(name, host));
      m.recorded.devices->add(std::make_shared<Workspace>(std::move(other)));
    }
    loader.set_devices(m.recorded.devices, options.deterministic);
  }
  MORACLE_CHECK(load_embedding(m, description));
  MORACLE_CHECK(allocate_activations(m, description));
  if (description.join) MORACLE_CHECK(allocate_join(m, *description.join));
  m.activations.feed_forward.divided = m.tp_size > 1 ? m.exchange.get() : nullptr;
  m.activations.feed_forward.dispatch = m.dispatch.get();
  m.activations.feed_forward.ranks =
      m.exchange != nullptr && m.dispatch == nullptr ? &m.ranks : nullptr;
  m.activations.feed_forward.count_tokens = options.count_routing;
  loader.set_lora_ids(m.activations.feed_forward.lora_ids);
  const DType dtype = device->activation_dtype();
  const int64_t page = cache_page(device->platform());
  size_t page_bytes = 0, state_bytes = 0;
  for (const LayerDescription& from : description.layers) {
    Layer& layer = m.layers.emplace_back();
    layer.cache = layer_cache(attention_sizes(from.attention, m.max_num_tokens, dtype),
                              m.cache_dtype, page, page_bytes, state_bytes);
    MORACLE_CHECK(set_scales(layer.cache, from));
    layer.attention = make_attention(from.attention);
    if (!from.ngrams) continue;
    layer.ngram_state = static_cast<int64_t>(state_bytes);
    state_bytes += static_cast<size_t>(ngram_state_bytes(from.ngrams->spec));
  }
  MORACLE_TRY(std::vector<Buffer> tables, read_ngram_tables(description, *device));
  set_ngram_tables(m, std::move(tables));
  m.weight_bytes += description.ngram_bytes();
  if (state_bytes > 0) m.state_pool = std::make_shared<KvPool>(device, 1, state_bytes, 0);
  int64_t cache_bytes = options.cache_bytes;
  if (cache_bytes == 0 && options.device_memory > 0)
    cache_bytes = std::max<int64_t>(options.device_memory - planned.total_bytes(), 1);
  m.cache_pool = std::make_shared<KvPool>(std::move(device), page, page_bytes, cache_bytes);
  MORACLE_CHECK(load_weights(m, std::move(description), loader));
  m.weight_bytes += loader.weight_bytes();
  MORACLE_CHECK(fill_slots(m, options));
  for (Layer& layer : m.layers) {
    MoeStage& routed = layer.feed_forward.routed;
    if (!m.group || !routed.has_router()) continue;
    MORACLE_CHECK(
        routed.find_copies(*m.group, options.num_redundant_experts == 0, m.workspace->device()));
  }
  MORACLE_TRY(modules, std::move(loader).finish());
  m.choices = grouped(std::move(modules));
  return Model(std::move(state));
}

Status Model::reload(const Checkpoint& checkpoint, const Progress& progress) {
  return or_out_of_memory(checkpoint.folder(),
                          [&] { return state_->reload(checkpoint, progress); });
}

Status Model::State::reload(const Checkpoint& checkpoint, const Progress& progress) {
  State& m = *this;
  if (m.next_tokens) {
    return Error{ErrorKind::kUnsupported, checkpoint.folder(), "reload",
                 "a model without a layer for multi-token prediction",
                 "this one was loaded with it; start a new process to load other weights"};
  }
  const DeviceLock lock = m.workspace->device().lock();
  ReadRecord& record = checkpoint.state().tensors.record();
  record.on = m.group != nullptr;
  Loader loader = Loader::reload(m.workspace, progress, checkpoint.total_bytes());
  loader.set_record(&record, m.tp_size > 1);
  std::string versions = versions_of(checkpoint);
  Buffer fresh;
  std::vector<Buffer> tables;
  std::vector<LayerCache> caches;
  const auto read = [&]() -> Status {
    MORACLE_TRY(Description description, describe(checkpoint, m.changes));
    MORACLE_CHECK(check_same_model(m, description, checkpoint.folder()));
    ModelOptions share;
    share.tp_size = m.tp_size;
    share.lm_head_size = m.output_shares.size;
    share.parallel.ep_rank = m.group ? m.group->rank() : 0;
    MORACLE_CHECK(divide(description, share));
    for (size_t l = 0; l < m.layers.size(); ++l)
      MORACLE_CHECK(set_scales(caches.emplace_back(m.layers[l].cache), description.layers[l]));
    Device& device = m.workspace->device();
    MORACLE_TRY(fresh, read_table(description.embedding,
                                  description.embedding_type(device.platform()), device));
    MORACLE_TRY(tables, read_ngram_tables(description, device));
    return load_weights(m, std::move(description), loader);
  };
  const Status done = or_out_of_memory(checkpoint.folder(), read);
  record.on = false;
  ThreadPool& pool = kernel_device(m.workspace->device()).host_threads();
  std::vector<Fact> facts;
  if (m.group) {
    facts = facts_of_reload(checkpoint, done, record, pool);
    MORACLE_CHECK(agree(*m.group, facts));
  }
  MORACLE_CHECK(done);
  m.recorded.forget();
  MORACLE_CHECK(std::move(loader).commit());
  set_embedding(m, std::move(fresh), m.embedding.dtype);
  set_ngram_tables(m, std::move(tables));
  for (size_t l = 0; l < m.layers.size(); ++l) {
    m.layers[l].cache = caches[l];
    m.layers[l].feed_forward.routed.reset_tokens();
  }
  m.num_rows = 0;
  m.weights_text = identity_of(facts);
  m.file_versions = std::move(versions);
  return {};
}

}  // namespace moracle
