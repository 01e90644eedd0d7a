// Sums and gathers by one kernel over the memory of the other GPUs: small ones in lines, large ones
// in blocks. All other operations go through NCCL.
#if defined(MORACLE_WITH_NCCL)
#include "base/text.h"
#include "base/try.h"
#include "kernels/cuda/device/cuda_check.h"
#include "parallel/cuda/nccl_exchange.h"
#include "parallel/cuda/peer_blocks.h"
#include "parallel/exchange_makers.h"
#include "parallel/row_sums.h"

namespace moracle {
namespace {

// Bytes that one rank sends to all others in lines. For more, half of the link's bytes would be
// flags.
constexpr int64_t kMostSent = int64_t{1} << 19;

class PeerExchange final : public Exchange, public RowSums {
 public:
  static Result<std::unique_ptr<Exchange>> make(std::shared_ptr<Group> group,
                                                std::shared_ptr<Device> device);
  ~PeerExchange() override {
    // Destructor: errors are dropped; synchronize() has reported them. The kernels must be done
    // before the memory that they use goes.
    static_cast<void>(gpu().synchronize({}).ok());
  }
  std::string_view name() const override { return "cuda-peer"; }
  bool in_graphs() const override { return true; }

  Status all_reduce(const Matrix& x, Stream stream) override {
    MORACLE_CHECK(check_summed(x));
    const int64_t bytes = bytes_of(x);
    const Way way = way_of(bytes, bytes | address(x.data));
    // Each rank sends all of x to each other one: with more than two, a ring sends less.
    if (way == Way::kRest || (way == Way::kBlocks && lines_.ranks > 2))
      return rest_->all_reduce(x, stream);
    return run([&](const auto& memory) { return peer_sum(gpu().queue(), memory, x, stream); }, way);
  }
  Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) override {
    const Gathered part{mine, bytes, all};
    return all_gather({&part, 1}, stream);
  }
  Status all_gather(std::span<const Gathered> parts, Stream stream) override {
    std::vector<cuda::PeerPart> own;
    int64_t bytes = 0, odd = 0;
    for (const Gathered& part : parts) {
      const auto here = static_cast<int64_t>(part.bytes);
      own.push_back(
          {static_cast<const std::byte*>(part.mine), here, static_cast<std::byte*>(part.all)});
      bytes += here, odd |= here | address(part.mine) | address(part.all);
    }
    const Way way = parts.size() <= cuda::kMostGathered ? way_of(bytes, odd) : Way::kRest;
    if (way == Way::kRest) return rest_->all_gather(parts, stream);
    return run([&](const auto& memory) { return peer_gather(gpu().queue(), memory, own, stream); },
               way);
  }
  Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) override {
    MORACLE_CHECK(check_scattered(all, mine, lines_.ranks));
    const int64_t bytes = bytes_of(mine);
    const Way way = way_of(bytes, bytes | address(all.data) | address(mine.data));
    if (way == Way::kRest) return rest_->reduce_scatter(all, mine, stream);
    return run(
        [&](const auto& memory) { return peer_sum_rows(gpu().queue(), memory, all, mine, stream); },
        way);
  }
  RowSums* row_sums() override { return this; }
  bool serves(const Matrix& mine) const override {
    const bool vectors = mine.cols % 8 == 0 && mine.stride == mine.cols;
    return mine.dtype == DType::kBF16 && vectors &&
           way_of(bytes_of(mine), bytes_of(mine) | address(mine.data)) == Way::kBlocks;
  }
  Status add(const ExpertRows& rows, const RowOrder& order, const Matrix& mine,
             Stream stream) override {
    const Matrix& from = rows.values;
    if (from.dtype != DType::kBF16 || from.cols != mine.cols || from.stride % 8 != 0 ||
        rows.num_tokens != mine.rows * lines_.ranks || address(from.data) % 16 != 0 ||
        rows.num_tokens * (mine.cols / 8) >= int64_t{1} << 32) {
      return Error{ErrorKind::kInvalidArgument, "", "exchange 'cuda-peer'",
                   str("rows of ", mine.cols, " bf16 for ", mine.rows, " tokens of each rank"),
                   str("they are ", moracle::name(from.dtype), " [", from.rows, ", ", from.cols,
                       "] for ", rows.num_tokens)};
    }
    const Turn turn = gpu().turn();
    MORACLE_CHECK(watch_->status());
    return cuda::peer_add_rows(gpu().queue(), blocks_, rows, order, mine, stream);
  }
  Status exchange(std::span<const Group::Part> send, std::span<const Group::Part> receive,
                  Stream stream) override {
    return rest_->exchange(send, receive, stream);
  }

 private:
  PeerExchange(std::unique_ptr<NcclExchange> rest, PeerMemory memory)
      : rest_(std::move(rest)), memory_(std::move(memory)) {}

  enum class Way : uint8_t { kLines, kBlocks, kRest };

  static int64_t bytes_of(const Matrix& x) { return x.rows * x.cols * bits(x.dtype) / 8; }
  static int64_t address(const void* data) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
  }
  // `odd`: all sizes and addresses, by or.
  Way way_of(int64_t bytes, int64_t odd) const {
    if (bytes * (lines_.ranks - 1) <= kMostSent) return odd % 8 == 0 ? Way::kLines : Way::kRest;
    return odd % 16 == 0 ? Way::kBlocks : Way::kRest;
  }
  // Calls start(memory) with the memory of that way, if nothing has failed.
  template <class Start>
  Status run(const Start& start, Way way) {
    const Turn turn = gpu().turn();
    MORACLE_CHECK(watch_->status());
    return way == Way::kLines ? start(lines_) : start(blocks_);
  }
  CudaDevice& gpu() const { return rest_->device(); }

  std::unique_ptr<NcclExchange> rest_;
  PeerMemory memory_;
  Buffer rounds_;  // zeroed; of lines, then of blocks
  Buffer stop_;    // host memory
  cuda::PeerLines lines_{};
  cuda::PeerBlocks blocks_{};
  std::shared_ptr<RankWatch> watch_;
};

Result<std::unique_ptr<Exchange>> PeerExchange::make(std::shared_ptr<Group> group,
                                                     std::shared_ptr<Device> device) {
  MORACLE_TRY(std::unique_ptr<NcclExchange> rest, NcclExchange::make(group, device));
  CudaDevice& gpu = rest->device();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(gpu.queue().index));
  const size_t of_lines = cuda::PeerLines::memory_bytes(group->size());
  MORACLE_TRY(
      PeerMemory memory,
      PeerMemory::open(*group, gpu, of_lines + cuda::PeerBlocks::memory_bytes(group->size())));
  std::unique_ptr<PeerExchange> made(new PeerExchange(std::move(rest), std::move(memory)));
  MORACLE_TRY(made->rounds_, gpu.allocate((cuda::PeerLines::kBlocks + cuda::PeerBlocks::kBlocks) *
                                          sizeof(uint32_t)));
  MORACLE_TRY(made->stop_, gpu.allocate_host(sizeof(int)));
  made->lines_ = {made->memory_.all(), static_cast<int>(group->rank()),
                  static_cast<int>(group->size()), made->rounds_.as<uint32_t>(),
                  made->stop_.as<int>()};
  made->blocks_ = {made->memory_.all(), made->lines_.rank, made->lines_.ranks,
                   made->lines_.rounds + cuda::PeerLines::kBlocks, made->lines_.stop};
  for (int r = 0; r < made->lines_.ranks; ++r) made->blocks_.memory[r] += of_lines;
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
