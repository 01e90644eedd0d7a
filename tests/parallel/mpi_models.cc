// Started by mpirun: every tiny model on the ranks of the job, against one process. Each rank
// compares by itself. With the word "dispatched" the ranks have sequences of their own.
#include <cstdio>
#include <cstdlib>

#include <string_view>

#include "dispatched_on_ranks.h"

namespace {

int64_t number(const char* open_mpi, const char* pmi, int64_t otherwise) {
  const char* text = std::getenv(open_mpi);
  if (text == nullptr) text = std::getenv(pmi);
  return text == nullptr ? otherwise : std::atoll(text);
}

int fail(int64_t rank, const moracle::Error& error) {
  std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), error.to_string().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace moracle;
  RankOptions options;
  options.rank = number("OMPI_COMM_WORLD_RANK", "PMI_RANK", 0);
  options.size = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", 1);
  options.transport = "mpi";
  if (argc < 2 || options.size != std::atoll(argv[1])) {
    std::fprintf(stderr, "needs %s ranks; it has %d\n", argc > 1 ? argv[1] : "a number of",
                 static_cast<int>(options.size));
    return 1;
  }
  auto group = open_group(options);
  if (!group) return fail(options.rank, group.error());
  const bool dispatched = argc > 2 && std::string_view(argv[2]) == "dispatched";
  const Placement placement = options.size % 2 == 0 ? Placement::kLinear : Placement::kRoundRobin;
  for (const std::string& model : testing::golden_models()) {
    const Status done = dispatched ? testing::check_dispatched(model, *group, placement)
                                   : testing::check_on_ranks(model, *group, placement);
    if (done) continue;
    (*group)->abort(done.error());
    return fail(options.rank, done.error());
  }
  return 0;
}
