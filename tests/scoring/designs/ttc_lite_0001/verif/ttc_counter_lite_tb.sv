module ttc_counter_lite_tb;
    reg         clk = 0, reset = 1, write = 0;
    reg  [3:0]  addr = 0;
    reg  [31:0] data = 0;
    wire        interrupt;

    ttc_counter_lite dut (
        .clk(clk), .reset(reset), .axi_addr(addr), .axi_wdata(data), .axi_write_en(write), .axi_read_en(1'b0),
        .axi_rdata(), .interrupt(interrupt)
    );

    always #5 clk = !clk;

    task set(input [3:0] where, input [31:0] what);
        begin
            @(negedge clk) {addr, data, write} = {where, what, 1'b1};
            @(negedge clk) write = 0;
        end
    endtask

    initial begin
        repeat (2) @(negedge clk);
        reset = 0;
        set(1, 8);
        set(3, 7);
        repeat (12) @(negedge clk);
        if (!interrupt) $error("no interrupt at the match");
        set(4, 0);
        if (interrupt) $error("the interrupt was not cleared");
        $finish;
    end
endmodule
