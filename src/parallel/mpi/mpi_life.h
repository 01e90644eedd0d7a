// The begin and the end of MPI in this process.
#pragma once

#include <future>
#include <memory>
#include <thread>

#include "moracle/base.h"
#include "parallel/mpi/mpi_api.h"

namespace moracle {

/// An error of MPI, in its own words.
Error mpi_error(const MpiApi& mpi, int code, std::string need);

// MPI_Init and MPI_Finalize on one thread, which sleeps between them. MPI_Init waits for all ranks
// and knows no deadline; a wait for this thread does.
class MpiLife {
 public:
  explicit MpiLife(const MpiApi& mpi) : mpi_(mpi) {}
  /// Errors: MPI's; other ranks did not start in time.
  Status start(int& rank, int& size, double seconds);
  ~MpiLife() { end(false); }
  void end(bool finishes);

 private:
  // Shared with the thread, which may outlive this object if MPI_Init never returns.
  struct Shared {
    int rank = 0, size = 0;
    std::promise<int> started;
    std::promise<bool> ends;
  };
  const MpiApi& mpi_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace moracle
