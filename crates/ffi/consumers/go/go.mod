module adit.example/tunnel

go 1.19
