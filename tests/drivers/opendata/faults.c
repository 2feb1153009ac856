/* Preloaded into a server under test: while the file $FAULT_FILE exists, writing to files whose path
   holds $FAULT_PATH fails with the error that the file names (EIO or ENOSPC); where it says SYNC,
   everything but syncing them succeeds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int fault(int fd, int syncing) {
    const char *trigger = getenv("FAULT_FILE"), *path = getenv("FAULT_PATH");
    char link[64], target[4096], word[16] = "";
    if (!trigger || !path || access(trigger, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = 0;
    if (!strstr(target, path)) return 0;
    int file = open(trigger, O_RDONLY);
    if (file < 0) return 0;
    ssize_t got = read(file, word, sizeof word - 1);
    close(file);
    if (word[0] == 'S' && !syncing) return 0;
    return got > 0 && word[0] == 'E' && word[1] == 'N' ? ENOSPC : EIO;
}

#define REAL(name, syncing, ...) static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    int code = fault(fd, syncing); if (code) { errno = code; return -1; } return real(__VA_ARGS__)

ssize_t write(int fd, const void *b, size_t n) { REAL(write, 0, fd, b, n); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { REAL(pwrite, 0, fd, b, n, o); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) { REAL(pwrite64, 0, fd, b, n, o); }
ssize_t writev(int fd, const struct iovec *v, int n) { REAL(writev, 0, fd, v, n); }
int fsync(int fd) { REAL(fsync, 1, fd); }
int fdatasync(int fd) { REAL(fdatasync, 1, fd); }
int syncfs(int fd) { REAL(syncfs, 1, fd); }
int ftruncate(int fd, off_t n) { REAL(ftruncate, 0, fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64, 0, fd, n); }
