#include "parallel/mpi/mpi_life.h"

#include "base/text.h"

namespace moracle {

Error mpi_error(const MpiApi& mpi, int code, std::string need) {
  char text[256];
  mpi.error_text(code, text, sizeof text);
  return {ErrorKind::kIo, "", "mpi", std::move(need), text};
}

Status MpiLife::start(int& rank, int& size, double seconds) {
  seconds_ = seconds;
  std::future<int> started = shared_->started.get_future();
  thread_ = std::thread([mpi = &mpi_, shared = shared_] {
    shared->started.set_value(mpi->start(&shared->rank, &shared->size));
    if (shared->ends.get_future().get()) mpi->finish();
    shared->finished.set_value();
  });
  if (started.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready) {
    thread_.detach();
    return Error{ErrorKind::kIo, "", "mpi",
                 str("all ranks to start within ", seconds, " s (timeout_seconds)"),
                 "MPI_Init still waits for one"};
  }
  if (const int code = started.get(); code != 0) return mpi_error(mpi_, code, "to start");
  rank = shared_->rank;
  size = shared_->size;
  return {};
}

void MpiLife::end(bool finishes) {
  if (!thread_.joinable()) return;
  std::future<void> finished = shared_->finished.get_future();
  shared_->ends.set_value(finishes);
  if (finished.wait_for(std::chrono::duration<double>(seconds_)) == std::future_status::ready)
    thread_.join();
  else
    thread_.detach();
}

}  // namespace moracle
