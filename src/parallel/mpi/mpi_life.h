// MPI_Init and MPI_Finalize of this process.
#pragma once

#include <future>
#include <memory>
#include <thread>

#include "moracle/base.h"
#include "parallel/mpi/mpi_api.h"

namespace moracle {

/// An error of MPI, with its text.
Error mpi_error(const MpiApi& mpi, int code, std::string need);

// Calls MPI_Init and MPI_Finalize on one thread, which sleeps between them. Both wait for all ranks
// without a deadline; the wait for this thread has one.
class MpiLife {
 public:
  explicit MpiLife(const MpiApi& mpi) : mpi_(mpi) {}
  /// Errors: MPI's; other ranks did not start in time.
  Status start(int& rank, int& size, double seconds);
  ~MpiLife() { end(false); }
  /// `finishes`: calls MPI_Finalize, and leaves it behind if it still waits for a rank after the
  /// seconds of start(): a rank can end between the last barrier and there.
  void end(bool finishes);

 private:
  // Shared with the thread, which may outlive this object if MPI_Init or MPI_Finalize never
  // returns.
  struct Shared {
    int rank = 0, size = 0;
    std::promise<int> started;
    std::promise<bool> ends;
    std::promise<void> finished;
  };
  const MpiApi& mpi_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
  double seconds_ = 0;
};

}  // namespace moracle
