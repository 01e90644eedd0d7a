// A system that starts no threads: each would need a stack larger than any address space.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace moracle::testing {

class RefusedThreads {
 public:
  RefusedThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 47);
    refuses_ = pthread_setattr_default_np(&huge) == 0;
    pthread_attr_destroy(&huge);
  }
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
  ~RefusedThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  bool refuses() const { return refuses_; }

 private:
  pthread_attr_t before_;
  bool refuses_ = false;
};

}  // namespace moracle::testing
