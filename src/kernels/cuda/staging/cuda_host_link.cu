// Two counters in pinned host memory. The GPU counts its sends in `sent`; the host writes the
// number of the send that it answered, and whether it has a sum, to `answered`. A kernel that waits
// for the answer occupies a few threads until it comes.
#include "kernels/cuda/staging/cuda_host_link.h"

#include <atomic>
#include <chrono>

#include "base/scalar.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/elements.cuh"

namespace moracle::cuda {
namespace {

constexpr int kThreads = 256;

struct Counters {
  alignas(64) uint64_t sent = 0;       // written by the GPU
  alignas(64) uint64_t answered = 0;   // by the host: number · 2, + 1 with a sum
  alignas(64) uint64_t waited_ns = 0;  // by the GPU: for all answers so far
};

struct Sending {
  const std::byte* hidden;
  std::byte* to_hidden;
  int64_t hidden_bytes;
  const int32_t* ids;
  const float* weights;
  int32_t* to_ids;
  float* to_weights;
  int64_t choices;
  const int32_t* lora_ids;  // null: none
  int32_t* to_lora_ids;
  int64_t num_tokens;
  uint64_t* number;  // of the last send, in the GPU's memory
  unsigned* blocks_done;
  uint64_t* sent;
};

// Threads of the grid copy `bytes` in units of Word.
template <class Word>
__device__ void copy_words(const std::byte* from, std::byte* to, int64_t bytes) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Word));
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

template <class Word>
__global__ void send_to_host(Sending s) {
  copy_words<Word>(s.hidden, s.to_hidden, s.hidden_bytes);
  copy_words<int32_t>(reinterpret_cast<const std::byte*>(s.ids),
                      reinterpret_cast<std::byte*>(s.to_ids), s.choices * 4);
  copy_words<float>(reinterpret_cast<const std::byte*>(s.weights),
                    reinterpret_cast<std::byte*>(s.to_weights), s.choices * 4);
  if (s.lora_ids != nullptr)
    copy_words<int32_t>(reinterpret_cast<const std::byte*>(s.lora_ids),
                        reinterpret_cast<std::byte*>(s.to_lora_ids), s.num_tokens * 4);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(s.blocks_done, 1u) + 1 != gridDim.x) return;
  // The last block: every other one has fenced its copies.
  __threadfence_system();
  *s.blocks_done = 0;
  const uint64_t number = *s.number + 1;
  *s.number = number;
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(s.sent), "l"(number) : "memory");
}

struct Adding {
  Matrix output;
  const std::byte* sum;  // host memory, as the output without gaps
  const uint64_t* number;
  const uint64_t* answered;
  uint64_t* total_ns;  // in the GPU's memory; reading the host's takes a microsecond
  uint64_t* waited_ns;
  bool in_eights;  // 16 bytes of the sum at a time
};

__device__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__device__ float load_fresh(const std::byte* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return __ldcv(reinterpret_cast<const float*>(data) + i);
  const auto value = __ldcv(reinterpret_cast<const unsigned short*>(data) + i);
  return dtype == DType::kBF16 ? bf16_to_float(value) : f16_to_float(value);
}

__global__ void add_answer(Adding a) {
  __shared__ bool has_sum;
  if (threadIdx.x == 0) {
    const uint64_t number = *a.number;
    const uint64_t start = now_ns();
    uint64_t answer = 0;
    for (;;) {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                   : "=l"(answer)
                   : "l"(a.answered)
                   : "memory");
      if (answer / 2 >= number) break;
      __nanosleep(100);
    }
    has_sum = answer % 2 == 1;
    if (blockIdx.x == 0) {
      const uint64_t total = *a.total_ns + (now_ns() - start);
      *a.total_ns = total;
      *static_cast<volatile uint64_t*>(a.waited_ns) = total;
    }
  }
  __syncthreads();
  if (!has_sum) return;
  const Matrix& out = a.output;  // without gaps: one row of all elements
  const int64_t count = out.rows * out.cols, first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  if (a.in_eights) {
    for (int64_t i = first; i < count / 8; i += stride) {
      union {
        uint4 all;
        uint16_t each[8];
      } sum;
      sum.all = __ldcv(reinterpret_cast<const uint4*>(a.sum) + i);
      for (int j = 0; j < 8; ++j) {
        const float part =
            out.dtype == DType::kBF16 ? bf16_to_float(sum.each[j]) : f16_to_float(sum.each[j]);
        store(out, 0, i * 8 + j, load(out, 0, i * 8 + j) + part);
      }
    }
    return;
  }
  for (int64_t i = first; i < count; i += stride)
    store(out, 0, i, load(out, 0, i) + load_fresh(a.sum, out.dtype, i));
}

class CudaHostLink final : public HostLink {
 public:
  explicit CudaHostLink(CudaDevice& device) : device_(device), queue_(device.queue()) {}

  Status start(const HostLinkSize& size) {
    MORACLE_CHECK(open(device_, size));
    MORACLE_TRY(counters_, device_.allocate_host(sizeof(Counters)));
    MORACLE_TRY(numbers_, device_.allocate(3 * sizeof(uint64_t)));
    return {};
  }

  bool device_waits() const override { return true; }

  Status send(const Call& call, Stream stream) override {
    const Matrix& rows = call.hidden;
    const auto bytes = rows.rows * rows.cols * static_cast<int64_t>(bits(rows.dtype)) / 8;
    const Sending sending{.hidden = static_cast<const std::byte*>(rows.data),
                          .to_hidden = hidden(),
                          .hidden_bytes = bytes,
                          .ids = call.ids,
                          .weights = call.weights,
                          .to_ids = ids(),
                          .to_weights = weights(),
                          .choices = call.choices,
                          .lora_ids = call.lora_ids,
                          .to_lora_ids = lora_ids(),
                          .num_tokens = rows.rows,
                          .number = numbers_.as<uint64_t>(),
                          .blocks_done = reinterpret_cast<unsigned*>(numbers_.as<uint64_t>() + 1),
                          .sent = &counters().sent};
    const bool wide =
        (reinterpret_cast<uintptr_t>(rows.data) | static_cast<uintptr_t>(bytes)) % sizeof(uint4) ==
        0;
    const auto start = [&](auto kernel, int64_t unit) {
      return launch(queue_, stream, "send_to_host", kernel, blocks_for(bytes / unit), kThreads, 0,
                    sending);
    };
    return wide ? start(send_to_host<uint4>, 16) : start(send_to_host<uint16_t>, 2);
  }

  Status arrived(Stream stream) override {
    const std::atomic_ref<uint64_t> sent(counters().sent);
    const uint64_t expected = ++expected_;
    using Clock = std::chrono::steady_clock;
    auto looked = Clock::now();
    while (sent.load(std::memory_order_acquire) < expected) {
      for (int i = 0; i < 32; ++i) __builtin_ia32_pause();
      if (Clock::now() - looked < std::chrono::milliseconds(1)) continue;
      // Nothing may come any more: the device failed, or it ended without the send.
      MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
      const cudaError_t state = cudaStreamQuery(queue_.of(stream));
      looked = Clock::now();
      if (state == cudaErrorNotReady) continue;
      MORACLE_CUDA(state);
      if (sent.load(std::memory_order_acquire) >= expected) break;
      --expected_;
      return Error{ErrorKind::kIo, "", device_.name(), "to send the activations of a layer",
                   "its stream is idle"};
    }
    return {};
  }

  void answer(Part part) override {
    const std::atomic_ref<uint64_t> answered(counters().answered);
    answered.store(expected_ * 2 + (part == Part::kSum ? 1 : 0), std::memory_order_release);
  }

  Status add(const Matrix& output, Stream stream) override {
    const int64_t count = output.rows * output.cols;
    const bool in_eights = bits(output.dtype) == 16 && count % 8 == 0;
    return launch(queue_, stream, "add_answer", add_answer,
                  blocks_for(in_eights ? count / 8 : count), kThreads, 0,
                  Adding{output, sum(), numbers_.as<uint64_t>(), &counters().answered,
                         numbers_.as<uint64_t>() + 2, &counters().waited_ns, in_eights});
  }

  double waited_us() const override {
    const std::atomic_ref<uint64_t> waited(counters().waited_ns);
    return static_cast<double>(waited.load(std::memory_order_relaxed)) / 1e3;
  }

 private:
  Counters& counters() const { return *counters_.as<Counters>(); }
  // Few blocks: those that wait for the host hold their SMs' threads meanwhile.
  static int64_t blocks_for(int64_t count) {
    return std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, 64);
  }

  CudaDevice& device_;
  const Queue& queue_;
  Buffer counters_, numbers_;
  uint64_t expected_ = 0;  // sends that the host has seen
};

}  // namespace

Result<std::unique_ptr<HostLink>> open_host_link(CudaDevice& device, const HostLinkSize& size) {
  auto link = std::make_unique<CudaHostLink>(device);
  MORACLE_CHECK(link->start(size));
  return std::unique_ptr<HostLink>(std::move(link));
}

}  // namespace moracle::cuda
