/* Lets one of the calls that change files of a folder fail, or all from it on.

   Preloaded into a process, which then calls `fault_set` by ctypes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX] = "";
static long calls = 0, fail_at = 0;
static int fail_errno = EIO, is_lasting = 0;

/* The n-th call from now on fails; 0 for none. */
void fault_set(const char *path, long n, int number, int lasting) {
  strncpy(folder, path, PATH_MAX - 1);
  fail_at = n;
  fail_errno = number;
  is_lasting = lasting;
  __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
}

long fault_count(void) { return __atomic_load_n(&calls, __ATOMIC_SEQ_CST); }

static int fails(const char *path) {
  size_t length = strlen(folder);
  if (!length || !path || strncmp(path, folder, length)) return 0;
  long n = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  if (!fail_at || n < fail_at || (n > fail_at && !is_lasting)) return 0;
  errno = fail_errno;
  return 1;
}

static int fd_fails(int fd) {
  char link[64], path[PATH_MAX];
  if (!folder[0]) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return fails(path);
}

#define REAL(name, ...) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
  return real(__VA_ARGS__)

#define BY_FD(result, name, error, types, ...) \
  result name types { \
    if (fd_fails(fd)) return error; \
    REAL(name, __VA_ARGS__); \
  }
#define BY_PATH(result, name, error, types, ...) \
  result name types { \
    if (fails(path)) return error; \
    REAL(name, __VA_ARGS__); \
  }
#define BY_FILE(result, name, error, types, ...) \
  result name types { \
    if (file && fd_fails(fileno(file))) return error; \
    REAL(name, __VA_ARGS__); \
  }

BY_FD(ssize_t, write, -1, (int fd, const void *b, size_t n), fd, b, n)
BY_FD(ssize_t, writev, -1, (int fd, const struct iovec *v, int n), fd, v, n)
BY_FD(int, fsync, -1, (int fd), fd)
BY_FD(int, fdatasync, -1, (int fd), fd)
BY_FD(int, ftruncate, -1, (int fd, off_t n), fd, n)
BY_PATH(int, rename, -1, (const char *path, const char *to), path, to)
BY_PATH(int, link, -1, (const char *path, const char *to), path, to)
BY_PATH(int, unlink, -1, (const char *path), path)
BY_PATH(int, rmdir, -1, (const char *path), path)
BY_PATH(int, mkdir, -1, (const char *path, mode_t mode), path, mode)
BY_FILE(int, fflush, EOF, (FILE *file), file)

size_t fwrite(const void *b, size_t size, size_t n, FILE *file) {
  if (fd_fails(fileno(file))) return 0;
  REAL(fwrite, b, size, n, file);
}

int fclose(FILE *file) {
  static int (*real)(FILE *);
  if (!real) real = (int (*)(FILE *))dlsym(RTLD_NEXT, "fclose");
  int is_failing = fd_fails(fileno(file));
  int result = real(file);
  if (!is_failing) return result;
  errno = fail_errno;
  return EOF;
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = va_arg(more, mode_t); \
    va_end(more); \
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails(path)) return -1; \
    REAL(name, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define FOPEN(name) \
  FILE *name(const char *path, const char *mode) { \
    if (strpbrk(mode, "wa+") && fails(path)) return NULL; \
    REAL(name, path, mode); \
  }
FOPEN(fopen)
FOPEN(fopen64)
