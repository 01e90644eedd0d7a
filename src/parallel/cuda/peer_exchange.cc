// Sums and gathers by one kernel over the memory of the other GPUs: small ones by the low-latency
// protocol, large ones in chunks. All other operations go through NCCL.
#if defined(MORACLE_WITH_NCCL)
#include "base/text.h"
#include "base/try.h"
#include "kernels/cuda/device/cuda_check.h"
#include "parallel/cuda/nccl_exchange.h"
#include "parallel/cuda/peer_chunks.h"
#include "parallel/exchange_makers.h"

namespace moracle {
namespace {

// Bytes that one rank sends to all others by the low-latency protocol. For more, chunks are faster:
// half of the bytes of packets are flags.
constexpr int64_t kMostLowLatency = int64_t{1} << 19;
// Bytes that a rank sends in the 5 µs of one more kernel.
constexpr int64_t kSecondKernel = 5 << 18;

class PeerExchange final : public Exchange {
 public:
  static Result<std::unique_ptr<Exchange>> make(std::shared_ptr<Group> group,
                                                std::shared_ptr<Device> device);
  ~PeerExchange() override {
    // Destructor: errors are dropped; synchronize() has reported them. Kernels must end before
    // their memory is freed.
    static_cast<void>(gpu().synchronize({}).ok());
  }
  std::string_view name() const override { return "cuda-peer"; }
  bool in_graphs() const override { return true; }

  Status all_reduce(const Matrix& x, Stream stream) override {
    MORACLE_CHECK(check_summed(x));
    const int64_t bytes = bytes_of(x);
    const Protocol protocol = protocol_for(bytes, bytes | address(x.data));
    if (protocol == Protocol::kNccl) return nccl_->all_reduce(x, stream);
    // In ranges a rank sends `saved` bytes less, by a second kernel.
    const int64_t ranks = low_latency_.ranks, saved = bytes * (ranks - 1) * (ranks - 2) / ranks;
    if (protocol == Protocol::kChunks && saved > kSecondKernel && bytes % (16 * ranks) == 0) {
      return run([&](const auto&) { return peer_sum_in_ranges(gpu().queue(), chunks_, x, stream); },
                 protocol);
    }
    return run([&](const auto& memory) { return peer_sum(gpu().queue(), memory, x, stream); },
               protocol);
  }
  Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) override {
    const Gathered one{mine, bytes, all};
    return all_gather({&one, 1}, stream);
  }
  Status all_gather(std::span<const Gathered> gathered, Stream stream) override {
    std::vector<cuda::PeerGathered> own;
    int64_t bytes = 0, odd = 0;
    for (const Gathered& one : gathered) {
      const auto here = static_cast<int64_t>(one.bytes);
      own.push_back(
          {static_cast<const std::byte*>(one.mine), here, static_cast<std::byte*>(one.all)});
      bytes += here, odd |= here | address(one.mine) | address(one.all);
    }
    const Protocol protocol =
        gathered.size() <= cuda::kMostGathered ? protocol_for(bytes, odd) : Protocol::kNccl;
    if (protocol == Protocol::kNccl) return nccl_->all_gather(gathered, stream);
    return run([&](const auto& memory) { return peer_gather(gpu().queue(), memory, own, stream); },
               protocol);
  }
  Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) override {
    MORACLE_CHECK(check_scattered(all, mine, low_latency_.ranks));
    const int64_t bytes = bytes_of(mine);
    const Protocol protocol = protocol_for(bytes, bytes | address(all.data) | address(mine.data));
    if (protocol == Protocol::kNccl) return nccl_->reduce_scatter(all, mine, stream);
    return run(
        [&](const auto& memory) { return peer_sum_rows(gpu().queue(), memory, all, mine, stream); },
        protocol);
  }
  bool fuses_combine(const Matrix& mine) const override {
    const bool vectors = mine.cols % 8 == 0 && mine.stride == mine.cols;
    return mine.dtype == DType::kBF16 && vectors &&
           protocol_for(bytes_of(mine), bytes_of(mine) | address(mine.data)) == Protocol::kChunks;
  }
  Status combine_scatter(const ExpertRows& rows, const RowOrder& order, const Matrix& mine,
                         Stream stream) override {
    const Matrix& from = rows.values;
    if (from.dtype != DType::kBF16 || from.cols != mine.cols || from.stride % 8 != 0 ||
        rows.num_tokens != mine.rows * low_latency_.ranks || address(from.data) % 16 != 0 ||
        rows.num_tokens * (mine.cols / 8) >= int64_t{1} << 32) {
      return Error{ErrorKind::kInvalidArgument, "", "exchange 'cuda-peer'",
                   str("rows of ", mine.cols, " bf16 for ", mine.rows, " tokens of each rank"),
                   str("they are ", moracle::name(from.dtype), " [", from.rows, ", ", from.cols,
                       "] for ", rows.num_tokens)};
    }
    const DeviceLock lock = gpu().lock();
    MORACLE_CHECK(watch_->status());
    return cuda::peer_combine_scatter(gpu().queue(), chunks_, rows, order, mine, stream);
  }
  Status exchange(std::span<const Group::Block> send, std::span<const Group::Block> receive,
                  Stream stream) override {
    return nccl_->exchange(send, receive, stream);
  }

 private:
  PeerExchange(std::unique_ptr<NcclExchange> nccl, PeerMemory memory)
      : nccl_(std::move(nccl)), memory_(std::move(memory)) {}

  enum class Protocol : uint8_t { kLowLatency, kChunks, kNccl };

  static int64_t bytes_of(const Matrix& x) { return x.rows * x.cols * bits(x.dtype) / 8; }
  static int64_t address(const void* data) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
  }
  // `odd`: the bitwise or of all sizes and addresses.
  Protocol protocol_for(int64_t bytes, int64_t odd) const {
    if (bytes * (low_latency_.ranks - 1) <= kMostLowLatency)
      return odd % 8 == 0 ? Protocol::kLowLatency : Protocol::kNccl;
    return odd % 16 == 0 ? Protocol::kChunks : Protocol::kNccl;
  }
  // Calls start(memory) with the memory of the protocol, if nothing has failed.
  template <class Start>
  Status run(const Start& start, Protocol protocol) {
    const DeviceLock lock = gpu().lock();
    MORACLE_CHECK(watch_->status());
    return protocol == Protocol::kLowLatency ? start(low_latency_) : start(chunks_);
  }
  CudaDevice& gpu() const { return nccl_->device(); }

  std::unique_ptr<NcclExchange> nccl_;
  PeerMemory memory_;
  Buffer rounds_;  // zeroed; of the low-latency protocol, then of chunks
  Buffer stop_;    // host memory
  cuda::PeerLowLatency low_latency_{};
  cuda::PeerChunks chunks_{};
  std::shared_ptr<RankWatch> watch_;
};

Result<std::unique_ptr<Exchange>> PeerExchange::make(std::shared_ptr<Group> group,
                                                     std::shared_ptr<Device> device) {
  MORACLE_TRY(std::unique_ptr<NcclExchange> nccl, NcclExchange::make(group, device));
  CudaDevice& gpu = nccl->device();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(gpu.queue().index));
  const size_t low_latency_bytes = cuda::PeerLowLatency::memory_bytes(group->size());
  MORACLE_TRY(PeerMemory memory,
              PeerMemory::open(*group, gpu,
                               low_latency_bytes + cuda::PeerChunks::memory_bytes(group->size())));
  std::unique_ptr<PeerExchange> made(new PeerExchange(std::move(nccl), std::move(memory)));
  MORACLE_TRY(
      made->rounds_,
      gpu.allocate((cuda::PeerLowLatency::kBlocks + cuda::PeerChunks::kBlocks) * sizeof(uint32_t)));
  MORACLE_TRY(made->stop_, gpu.allocate_host(sizeof(int)));
  made->low_latency_ = {made->memory_.all(), static_cast<int>(group->rank()),
                        static_cast<int>(group->size()), made->rounds_.as<uint32_t>(),
                        made->stop_.as<int>()};
  made->chunks_ = {made->memory_.all(), made->low_latency_.rank, made->low_latency_.ranks,
                   made->low_latency_.rounds + cuda::PeerLowLatency::kBlocks,
                   made->low_latency_.stop};
  for (int r = 0; r < made->low_latency_.ranks; ++r) made->chunks_.memory[r] += low_latency_bytes;
  made->watch_ = std::make_shared<RankWatch>(
      "cuda-peer", group, [] { return Status(); },
      [stop = made->stop_.as<int>()] { *static_cast<volatile int*>(stop) = 1; });
  gpu.watches().add(made->watch_);
  return std::unique_ptr<Exchange>(std::move(made));
}

}  // namespace

std::string peer_lacks() {
  if (std::string lacks = nccl_lacks(); !lacks.empty()) return lacks;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  static_cast<void>(cudaGetLastError());
  if (count < 2) return str("this process sees ", count, count == 1 ? " GPU" : " GPUs");
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      int can = 1;
      if (a != b && cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess) can = 0;
      if (can == 0) return str("GPU ", a, " cannot reach the memory of GPU ", b);
    }
  }
  return "";
}

Result<std::unique_ptr<Exchange>> make_peer(std::shared_ptr<Group> group,
                                            std::shared_ptr<Device> device) {
  return PeerExchange::make(std::move(group), std::move(device));
}

}  // namespace moracle
#endif
