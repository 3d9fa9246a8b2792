/* Runs a fuzz target over the files and folders named on the command line: the committed corpus as a regression test. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return -1;
    }
    size_t   size = 0, room = 1 << 16, n;
    uint8_t *data = malloc(room);
    while (data && (n = fread(data + size, 1, room - size, f)) > 0) {
        size += n;
        if (size == room) data = realloc(data, room *= 2);
    }
    fclose(f);
    if (!data) return -1;
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv) {
    int ran = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (stat(argv[i], &st) != 0) {
            perror(argv[i]);
            return 1;
        }
        if (!S_ISDIR(st.st_mode)) {
            if (run_file(argv[i])) return 1;
            ran++;
            continue;
        }
        DIR *dir = opendir(argv[i]);
        if (!dir) return 1;
        for (struct dirent *e; (e = readdir(dir));) {
            char path[4096];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (run_file(path)) return 1;
            ran++;
        }
        closedir(dir);
    }
    printf("%d inputs replayed\n", ran);
    return ran > 0 ? 0 : 1;
}
