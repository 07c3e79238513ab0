`timescale 1ns / 1ps

module sync_fifo_tb;
    localparam DEPTH = 5;

    reg        clk = 0;
    reg        rst_n = 0;
    reg        wr_en = 0;
    reg        rd_en = 0;
    reg  [7:0] wr_data = 0;
    wire [7:0] rd_data;
    wire       full, empty, almost_full, almost_empty, overflow, underflow;
    wire [2:0] count;
    integer    errors = 0;
    integer    i;

    sync_fifo #(.DATA_WIDTH(8), .DEPTH(DEPTH), .ALMOST_FULL(4), .ALMOST_EMPTY(1)) dut (
        .clk(clk), .rst_n(rst_n), .wr_en(wr_en), .wr_data(wr_data), .rd_en(rd_en), .rd_data(rd_data), .full(full),
        .empty(empty), .almost_full(almost_full), .almost_empty(almost_empty), .count(count), .overflow(overflow),
        .underflow(underflow)
    );

    always #5 clk = ~clk;

    task expect_state(input [2:0] want_count, input want_overflow, input want_underflow);
        begin
            if (count !== want_count || overflow !== want_overflow || underflow !== want_underflow
                || full !== (want_count == DEPTH) || empty !== (want_count == 0)
                || almost_full !== (want_count >= 4) || almost_empty !== (want_count <= 1)) begin
                errors = errors + 1;
                $display("FAIL: t=%0t count=%0d full=%b empty=%b almost=%b%b overflow=%b underflow=%b, expected count=%0d",
                         $time, count, full, empty, almost_full, almost_empty, overflow, underflow, want_count);
            end
        end
    endtask

    initial begin
        @(negedge clk);
        expect_state(0, 0, 0);
        rst_n = 1;
        wr_en = 1;
        for (i = 0; i < DEPTH; i = i + 1) begin
            wr_data = 8'h40 + i;
            @(negedge clk);
            expect_state(i + 1, 0, 0);
        end
        @(negedge clk);
        expect_state(DEPTH, 1, 0);
        wr_en = 0;
        rd_en = 1;
        for (i = 0; i < DEPTH; i = i + 1) begin
            @(negedge clk);
            expect_state(DEPTH - 1 - i, 0, 0);
            if (rd_data !== 8'h40 + i) begin
                errors = errors + 1;
                $display("FAIL: read %h, expected %h", rd_data, 8'h40 + i);
            end
        end
        @(negedge clk);
        expect_state(0, 0, 1);
        if (errors == 0) $display("PASS");
        $finish;
    end
endmodule
