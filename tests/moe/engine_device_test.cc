// Tests a layer inside an engine: the engine's memory and threads, weights that already lie on the
// device, and late errors that name the layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "moe/layer_on_rows.h"
#include "moracle/moe.h"
#include "support/device.h"
#include "support/must.h"

namespace moracle::engine_device_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

const Scheme kW8A8{kInt8StaticChannelSym, kInt8DynamicTokenSym};
constexpr int64_t kTokens = 9;

/// An engine's allocator: it takes memory from its own device and checks the addresses that are
/// freed.
class Allocator {
 public:
  explicit Allocator(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  DeviceOptions options(int threads = 2) {
    DeviceOptions options;
    options.threads = threads;
    options.allocate = [this](size_t bytes) { return take(bytes); };
    options.free = [this](void* data, size_t bytes) { give_back(data, bytes); };
    return options;
  }
  size_t taken() const { return taken_; }
  size_t live() const { return live_.size(); }
  size_t past = 0;       // bytes past an aligned address
  bool refuses = false;  // returns null
  bool throws = false;

 private:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (throws) throw std::runtime_error("no memory");
    Result<Buffer> buffer = device_->allocate(bytes + past);
    if (refuses || !buffer) return nullptr;
    taken_ += bytes;
    if (device_->host_visible()) std::memset(buffer->data(), 0xff, buffer->bytes());
    void* const data = buffer->as<std::byte>() + past;
    live_.emplace(data, *std::move(buffer));
    return data;
  }
  void give_back(void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto at = live_.find(data);
    ASSERT_TRUE(at != live_.end()) << "memory that is not the allocator's";
    EXPECT_EQ(at->second.bytes(), bytes + past);
    live_.erase(at);
  }

  std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::map<void*, Buffer> live_;
  size_t taken_ = 0;
};

Request request_on(const Device& device, const Scheme& scheme = kW8A8, int64_t lora_rank = 0) {
  Request request;
  request.layer = testing::odd_layer(scheme);
  request.max_num_tokens = kTokens;
  request.lora_rank = lora_rank;
  request.platform = device.platform();
  return request;
}

FusedMoe make(const Request& request, const std::shared_ptr<Device>& device) {
  return must(FusedMoe::make(conformance::random_weights(request.layer, 1),
                             select(request, Machine::here()), device));
}

/// Runs tokens whose arrays the test uploads, on any device.
std::vector<float> run(FusedMoe& moe, Device& device, const testing::TokenBatch& batch) {
  const auto up = [&](const auto& host) {
    Buffer buffer = must(device.allocate(host.size() * sizeof(host[0])));
    must(device.upload(buffer.data(), host.data(), buffer.bytes()));
    return buffer;
  };
  const Buffer hidden = up(batch.hidden), ids = up(batch.ids), weights = up(batch.weights);
  Buffer output = must(device.allocate(batch.hidden.size() * sizeof(float)));
  const int64_t size = moe.plan().layer.hidden_size;
  must(moe.apply(ConstMatrix::f32(hidden.as<float>(), batch.tokens, size), {ids.as<int32_t>()},
                 {weights.as<float>()}, Matrix::f32(output.as<float>(), batch.tokens, size)));
  std::vector<float> host(batch.hidden.size());
  must(device.download(host.data(), output.data(), output.bytes()));
  must(device.synchronize());
  return host;
}

class EngineDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto opened = testing::open_test_device(GetParam(), 2);
    if (!opened) GTEST_SKIP() << opened.error().to_string();
    own_ = *std::move(opened);
  }
  std::shared_ptr<Device> own_;
};

TEST_P(EngineDevice, AllMemoryOfALayerComesFromTheAllocatorAndGoesBack) {
  if (own_->platform() == Platform::kOpenCl) GTEST_SKIP() << "OpenCL refuses allocators";
  Allocator allocator(own_);
  const Request request = request_on(*own_, kW8A8, /*lora_rank=*/4);
  FusedMoe want = make(request, own_);
  const auto batch = testing::random_batch(request.layer, kTokens);
  {
    const auto device = must(open_device(GetParam(), allocator.options()));
    const size_t before = allocator.taken();
    FusedMoe moe = make(request, device);
    const Plan& plan = moe.plan();
    const int64_t layer = plan.weight_bytes + plan.adapter_bytes + plan.workspace_bytes;
    EXPECT_GE(allocator.taken() - before, static_cast<size_t>(layer + plan.scratch_bytes));
    EXPECT_EQ(run(moe, *device, batch), run(want, *own_, batch));
  }
  EXPECT_EQ(allocator.live(), 0u);
}

TEST_P(EngineDevice, WeightsOnTheDeviceAreReadExpertByExpert) {
  const LayerSpec spec = testing::odd_layer({kInt8StaticChannelSym, {}});
  const DescribedWeights random = conformance::random_weights(spec, 1);
  // The same numbers as tensors: codes i8 [E, N, K] and scales f32 [E, N].
  StoredExperts host;
  host.w13.name = "w1", host.w2.name = "w2";
  std::vector<Buffer> on_device;
  std::vector<std::vector<std::byte>> codes(2);
  std::vector<std::vector<float>> scales(2);
  for (int i = 0; i < 2; ++i) {
    const DescribedMatrix& matrix = i == 0 ? random.w13 : random.w2;
    for (int64_t e = 0; e < spec.num_experts; ++e) {
      const CanonicalMatrix expert = must(matrix.expert(e));
      codes[i].insert(codes[i].end(), expert.codes.begin(), expert.codes.end());
      scales[i].insert(scales[i].end(), expert.scales.begin(), expert.scales.end());
    }
    StoredMatrix& stored = i == 0 ? host.w13 : host.w2;
    const MatrixShape& shape = matrix.shape();
    stored.weight = {codes[i].data(), DType::kI8, {spec.num_experts, shape.n, shape.k}};
    stored.scales = {reinterpret_cast<const std::byte*>(scales[i].data()),
                     DType::kF32,
                     {spec.num_experts, shape.n}};
  }
  StoredExperts there = host;
  for (TensorView* view :
       {&there.w13.weight, &there.w13.scales, &there.w2.weight, &there.w2.scales}) {
    on_device.push_back(must(own_->allocate(view->num_bytes())));
    must(own_->upload(on_device.back().data(), view->data, view->num_bytes()));
    view->data = on_device.back().as<const std::byte>();
  }
  std::atomic<size_t> read{0}, largest{0};
  there.read = [&, device = own_](void* to, const void* from, size_t bytes) {
    read += bytes;
    for (size_t most = largest; bytes > most && !largest.compare_exchange_weak(most, bytes);) {
    }
    return device->read(to, from, bytes);
  };
  LayerSpec named = spec;
  Request request = request_on(*own_, spec.scheme);
  const auto made = [&](StoredExperts stored) {
    DescribedWeights weights = must(describe(std::move(stored), named));
    request.layer = weights.spec;
    return must(FusedMoe::make(std::move(weights), select(request, Machine::here()), own_));
  };
  FusedMoe want = made(host);
  EXPECT_EQ(read, 0u);
  FusedMoe got = made(there);
  const size_t all = codes[0].size() + codes[1].size() + 4 * (scales[0].size() + scales[1].size());
  EXPECT_EQ(read, all) << "each byte once";
  EXPECT_EQ(largest, codes[0].size() / spec.num_experts) << "one expert at a time";
  const auto batch = testing::random_batch(request.layer, kTokens);
  EXPECT_EQ(run(got, *own_, batch), run(want, *own_, batch));
}

TEST_P(EngineDevice, LateErrorsNameTheirLayer) {
  Request request = request_on(*own_);
  FusedMoe first = make(request, own_);
  auto bad = testing::random_batch(request.layer, kTokens);
  bad.ids[3] = 77;
  const auto error_of = [&](FusedMoe& moe) {
    try {
      run(moe, *own_, bad);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  {
    request.layer.name = "layers.4.experts";
    FusedMoe second = make(request, own_);
    EXPECT_THAT(error_of(second), HasSubstr("layers.4.experts: topk_ids: needs"));
    EXPECT_THAT(error_of(first), HasSubstr("layers.3.experts: topk_ids: needs"));
  }
  request.layer.name = "layers.5.experts";
  FusedMoe third = make(request, own_);
  EXPECT_THAT(error_of(third), HasSubstr("layers.5.experts: topk_ids: needs"));
}

INSTANTIATE_TEST_SUITE_P(Cpu, EngineDevice, ::testing::Values("cpu"));
#ifdef MORACLE_WITH_CUDA
INSTANTIATE_TEST_SUITE_P(Cuda, EngineDevice, ::testing::Values("cuda"));
#endif
#ifdef MORACLE_WITH_OPENCL
INSTANTIATE_TEST_SUITE_P(OpenCl, EngineDevice, ::testing::Values("opencl"));
#endif

TEST(EngineMemory, RefusedMemoryIsAnErrorWithTheReason) {
  Allocator allocator(*open_device("cpu", 1));
  const auto device = must(open_device("cpu", allocator.options()));
  allocator.refuses = true;
  const auto null = device->allocate(1000);
  ASSERT_FALSE(null);
  EXPECT_EQ(null.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(null.error().to_string(),
            "cpu: needs 1000 bytes of memory; the engine's allocator returned null");
  allocator.refuses = false, allocator.throws = true;
  EXPECT_THAT(device->allocate(1000).error().to_string(), HasSubstr("threw an exception"));
  allocator.throws = false, allocator.past = 8;
  EXPECT_THAT(device->allocate(1000).error().to_string(),
              HasSubstr("allocate: needs memory at a multiple of 64 bytes; it is 8 bytes past"));
  EXPECT_EQ(allocator.live(), 0u) << "unaligned memory goes back";
}

TEST(EngineOptions, RejectsOptionsThatDoNotGoTogether) {
  const auto refused = [](const std::function<void(DeviceOptions&)>& change) {
    DeviceOptions options;
    change(options);
    const auto device = open_device("cpu", options);
    return device ? "accepted" : device.error().to_string();
  };
  const auto allocate = [](size_t) -> void* { return nullptr; };
  const auto run_tasks = [](int count, const std::function<void(int)>& task) {
    for (int i = 0; i < count; ++i) task(i);
  };
  EXPECT_EQ(refused([&](DeviceOptions& o) { o.allocate = allocate; }),
            "free: needs both allocate and free, or none; it is not set");
  EXPECT_EQ(refused([&](DeviceOptions& o) { o.free = [](void*, size_t) {}; }),
            "allocate: needs both allocate and free, or none; it is not set");
  EXPECT_THAT(refused([&](DeviceOptions& o) { o.pin = true, o.run_tasks = run_tasks; }),
              HasSubstr("pin: needs threads of the library"));
  EXPECT_THAT(refused([&](DeviceOptions& o) { o.threads = -1, o.run_tasks = run_tasks; }),
              HasSubstr("threads: needs 1 to 4096"));
#ifdef MORACLE_WITH_OPENCL
  DeviceOptions options;
  options.allocate = allocate, options.free = [](void*, size_t) {};
  EXPECT_THAT(open_device("opencl", options).error().to_string(),
              HasSubstr("allocate: needs no allocator on opencl:0"));
#endif
}

// The engine's threads, here made for each job, run every task, and the bits are those of threads
// of the library.
TEST(EngineThreads, RunAllTasksWithTheBitsOfOwnThreads) {
  for (const Scheme& scheme : {kW8A8, Scheme{kInt8StaticChannelSym, {}}}) {
    std::atomic<int> jobs{0}, tasks{0}, on_caller{0};
    const std::thread::id caller = std::this_thread::get_id();
    DeviceOptions options;
    options.threads = 3;
    options.run_tasks = [&](int count, const std::function<void(int)>& task) {
      ++jobs;
      std::vector<std::thread> threads;
      for (int i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
          ++tasks;
          if (std::this_thread::get_id() == caller) ++on_caller;
          task(i);
        });
      }
      for (std::thread& thread : threads) thread.join();
    };
    const auto engine = must(open_device("cpu", options)), own = must(open_device("cpu", 3));
    const Request request = request_on(*own, scheme);
    const auto batch = testing::random_batch(request.layer, kTokens);
    FusedMoe got = make(request, engine);
    const int packed = jobs;
    EXPECT_GT(packed, 0) << "weights are packed by tasks";
    FusedMoe want = make(request, own);
    EXPECT_EQ(run(got, *engine, batch), run(want, *own, batch));
    EXPECT_GT(jobs, packed);
    EXPECT_EQ(tasks, 3 * jobs);
    EXPECT_EQ(on_caller, 0);
  }
}

}  // namespace
}  // namespace moracle::engine_device_test
