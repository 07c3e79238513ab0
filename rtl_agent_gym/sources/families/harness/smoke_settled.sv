module smoke;
    reg clock = 0, reset = <RESET_LEVEL>, enable = <ENABLE_LEVEL>;
    reg [63:0] data = 0, other = 0, last;
    reg move, held = 1, moves = 0, enabled = 0, still = 1;
    <MODULE> dut (.<CLOCK>(clock), .<RESET>(reset), .<ENABLE>(enable));
    integer i;
    initial begin
<FORCES>
        for (i = 0; i < 1280; i = i + 1) begin // 256 cycles in reset, 512 with enable, 512 without
            if (i == 128 || i == 256 || i == 768) enable = !enable;
            if (i == 256) reset = !reset;
            last = dut.<OUTPUT>;
            data = {$urandom, $urandom};
            other = {$urandom, $urandom};
            #1 clock = 1; #1 clock = 0;
            data = 0;
            #1 move = last !== dut.<OUTPUT>;
            if (i == 0) held = ^dut.<OUTPUT> !== 1'bx;
            else if (i < 256) held = held && !move;
            else moves = moves || move;
            if (i == 767) enabled = moves;
            if (i >= 776) still = still && !move;
        end
        if (!held || !moves) $display("FAIL: reset");
        else if (enabled && still) $display("PASS");
        else $display("FAIL: enable");
        $finish(0);
    end
endmodule
