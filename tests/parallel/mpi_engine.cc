// Started by mpirun: an engine that has begun MPI itself hands its communicator to the library. Its
// ranks there are in reverse order. Each rank compares with one process.
#include <mpi.h>

#include <cstdio>

#include "base/try.h"
#include "dispatched_layers.h"
#include "moracle/parallel.h"

namespace {

using namespace moracle;
using namespace moracle::testing;

Error wrong(std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", "test", std::move(need), std::move(fact)};
}

Status check_spread(const std::shared_ptr<Group>& group, Spread spread) {
  const LayerSpec layer = layer_of(*parse_scheme("bf16"));
  const std::shared_ptr<Device> device = *open_device("cpu", 1);
  MORACLE_TRY(std::unique_ptr<Exchange> exchange, open_exchange(group, device));
  const auto ranks = std::make_shared<ExpertParallel>(group, std::move(exchange), device, spread);
  Parallelism parallel;
  parallel.ep_size = group->size(), parallel.ep_rank = group->rank();
  MORACLE_TRY(FusedMoe moe, make_moe(layer, parallel, device, kMostTokens));
  MORACLE_TRY(ParallelMoe experts, ParallelMoe::make(std::move(moe), ranks));
  const bool own_tokens = spread == Spread::kDispatched;
  const Tokens tokens = tokens_of(own_tokens ? group->rank() : 0, own_tokens ? group->rank() : 6);
  std::vector<float> output(tokens.hidden.size());
  MORACLE_CHECK(experts.apply(ConstMatrix::f32(tokens.hidden.data(), tokens.count(), kHidden),
                              {tokens.ids.data()}, {tokens.weights.data()},
                              Matrix::f32(output.data(), tokens.count(), kHidden)));
  if (largest_difference(output, expected(layer, tokens)) < kOrderOfSums) return {};
  return wrong("the outputs of one process", "they differ");
}

Status check(int rank, int size, MPI_Comm communicator) {
  RankOptions options;
  options.mpi_communicator = &communicator;
  options.timeout_seconds = 60;
  for (int round = 0; round < 2; ++round) {  // a group can follow one that has ended
    MORACLE_TRY(const std::shared_ptr<Group> group, open_group(options));
    if (group->rank() != size - 1 - rank || group->size() != size ||
        group->options().local_size != size)
      return wrong("ranks of the engine's communicator", "they are others");
    const auto second = open_group(options);
    if (second || second.error().to_string().find("another group") == std::string::npos)
      return wrong("a second group to be refused", "it was not");
    MORACLE_CHECK(check_spread(group, Spread::kReplicated));
    MORACLE_CHECK(check_spread(group, Spread::kDispatched));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  RankOptions early;
  MPI_Comm world = MPI_COMM_WORLD;
  early.mpi_communicator = &world;
  const auto refused = open_group(early);
  if (refused || refused.error().to_string().find("MPI is not started") == std::string::npos) {
    std::fprintf(stderr, "a communicator before MPI_Init must be refused\n");
    return 1;
  }
  int provided = 0, rank = 0, size = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm reversed = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &reversed);
  const moracle::Status done = check(rank, size, reversed);
  if (!done) {
    std::fprintf(stderr, "rank %d: %s\n", rank, done.error().to_string().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Comm_free(&reversed);
  MPI_Finalize();
  return 0;
}
